//! Sweeps against plain nested loops, and sweeps that must be refused.

use super::*;

const KNOWN: [&str; 3] = ["hit_ppm", "waf_ppm", "latency_p99_ns"];

const GOOD: &str = r#"description = "Policies by size"
profile = "cylon"
workloads = ["cylon-seq", "cylon-rand"]
seeds = [1, 2, 3]
columns = ["hit_ppm", "waf_ppm"]

[set]
cache.ways = 8

[[axis]]
key = "cache.eviction"
values = ["fifo", "s3-fifo"]

[[axis]]
key = "cache.frames"
from = 1000
to = 8000
factor = 2

[run]
fill_permille = 900
fill_pattern = "random"
"#;

fn good() -> Sweep {
    Sweep::parse("good", GOOD, &KNOWN).unwrap()
}

/// A figure that says which point it is of.
fn row(sweep: &Sweep, number: u64) -> Row {
    let figures = match number % 7 {
        3 => Err(format!("point {number}, \"quoted\", cannot be")),
        _ => {
            let is_there = |at| at == 0 || number.is_multiple_of(2);
            Ok((0..sweep.columns.len()).map(|at| is_there(at).then_some(number)).collect())
        }
    };
    Row { point: number, figures }
}

#[test]
fn the_points_are_those_of_nested_loops() {
    let sweep = good();
    let mut number = 0;
    for eviction in ["fifo", "s3-fifo"] {
        for frames in [1000, 2000, 4000, 8000] {
            for workload in ["cylon-seq", "cylon-rand"] {
                for seed in 1..=3 {
                    let set = vec![
                        ("cache.ways".to_owned(), Value::Integer(8)),
                        ("cache.eviction".to_owned(), Value::Text(eviction.to_owned())),
                        ("cache.frames".to_owned(), Value::Integer(frames)),
                    ];
                    assert_eq!(sweep.point(number), Point { number, set, workload: workload.to_owned(), seed });
                    number += 1;
                }
            }
        }
    }
    assert_eq!(sweep.points(), number);
}

#[test]
fn ranges_are_those_that_are_counted_out() {
    for (keys, expected) in [
        ("from = 1\nto = 5\nstep = 2", vec![1, 3, 5]),
        ("from = -4\nto = 4\nstep = 4", vec![-4, 0, 4]),
        ("from = 3\nto = 100\nfactor = 3", vec![3, 9, 27, 81]),
        ("from = 7\nto = 7\nstep = 1", vec![7]),
        ("from = 9223372036854775806\nto = 9223372036854775807\nfactor = 2", vec![9_223_372_036_854_775_806]),
    ] {
        let text = GOOD.replace("from = 1000\nto = 8000\nfactor = 2", keys);
        let sweep = Sweep::parse("range", &text, &KNOWN).unwrap();
        let expected: Vec<Value> = expected.into_iter().map(Value::Integer).collect();
        assert_eq!(sweep.axes[1].values, expected, "{keys}");
    }
}

#[test]
fn bad_sweeps_are_refused_by_name_and_line() {
    for (from, to, line, expected) in [
        ("seeds", "sedes", 4, "unknown field `sedes`"),
        ("profile = \"cylon\"\n", "", 1, "missing field `profile`"),
        (
            "columns = [\"hit_ppm\", ",
            "columns = [\"hit_ppm\", \"hits\", ",
            5,
            "`hits` of columns is no figure; choose of",
        ),
        ("\"waf_ppm\"]", "\"hit_ppm\"]", 5, "`hit_ppm` of columns is there twice"),
        ("seeds = [1, 2, 3]", "seeds = []", 4, "seeds has 0 items"),
        ("seeds = [1, 2, 3]", "seeds = [1, 2, 1]", 4, "`1` of seeds is there twice"),
        ("\"cylon-seq\", \"cylon-rand\"", "", 3, "workloads has 0 items"),
        ("values = [\"fifo\", \"s3-fifo\"]", "values = []", 12, "the axis cache.eviction has 0 items"),
        ("\"s3-fifo\"", "\"fifo\"", 12, "`fifo` of the axis cache.eviction is there twice"),
        ("\"s3-fifo\"", "0.5", 12, "a word, a whole number, true or false"),
        ("key = \"cache.frames\"", "key = \"cache.eviction\"", 15, "the axis cache.eviction is there twice"),
        ("to = 8000\n", "", 15, "the axis cache.frames must have either values, or from and to"),
        ("to = 8000", "to = 8000\nvalues = [1]", 15, "the axis cache.frames must have either values, or from and to"),
        ("from = 1000", "from = 9000", 16, "goes from 9000 to 8000, which is none"),
        ("factor = 2", "factor = 1", 16, "a factor of 2 or more"),
        ("from = 1000", "from = 0", 16, "begin above 0"),
        ("factor = 2", "step = 0", 16, "a step of 1 or more"),
        ("factor = 2", "", 16, "must have a step"),
        ("to = 8000\nfactor = 2", "to = 80000\nstep = 1", 16, "more than 10000 values"),
        ("fill_permille = 900", "fill_permille = 1900", 20, "more than 1000"),
        ("fill_pattern = \"random\"", "", 20, "belong together"),
        ("fill_pattern", "fill_patterns", 22, "unknown field `fill_patterns`"),
        ("cache.ways = 8", "cache.ways = 8.5", 7, "set.cache.ways must be a word"),
        ("[set]", "[set", 7, ""),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = Sweep::parse("mine", &GOOD.replacen(from, to, 1), &KNOWN).unwrap_err().to_string();
        assert!(error.starts_with(&format!("sweep mine, line {line}: ")) && error.contains(expected), "{to}: {error}");
    }
    let seeds: Vec<String> = (0..9000).map(|seed| seed.to_string()).collect();
    let large = GOOD.replace("1, 2, 3", &seeds.join(",")).replace("to = 8000\nfactor = 2", "to = 2000\nstep = 1");
    let error = Sweep::parse("mine", &large, &KNOWN).unwrap_err().to_string();
    assert!(error.contains("at most 1000000 are run"), "{error}");
}

#[test]
fn results_are_the_same_bytes_in_whatever_order_rows_came() {
    let sweep = good();
    let rows: Vec<Row> = (0..sweep.points()).map(|number| row(&sweep, number)).collect();
    let mut shuffled = rows.clone();
    let mut rng = crate::Rng::new(3);
    for last in (1..shuffled.len()).rev() {
        shuffled.swap(last, (rng.next() % (last as u64 + 1)) as usize);
    }
    assert_ne!(shuffled, rows);
    let csv = to_csv(&sweep, "d", &rows);
    assert_eq!(to_csv(&sweep, "d", &shuffled), csv);
    assert_eq!(to_report(&sweep, "d", &shuffled).to_html(), to_report(&sweep, "d", &rows).to_html());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "sweep,point,cache.eviction,cache.frames,workload,seed,hit_ppm,waf_ppm,error");
    assert_eq!(lines[1], "d,0,fifo,1000,cylon-seq,1,0,0,");
    assert_eq!(lines[2], "d,1,fifo,1000,cylon-seq,2,1,,");
    assert_eq!(lines[4], "d,3,fifo,1000,cylon-rand,1,,,\"point 3, \"\"quoted\"\", cannot be\"");
    assert_eq!(lines.len() as u64, 1 + sweep.points());
}

#[test]
fn a_page_has_a_chart_for_each_figure_whatever_the_axes_are() {
    let first = "[[axis]]\nkey = \"cache.eviction\"\nvalues = [\"fifo\", \"s3-fifo\"]\n";
    let numbers = GOOD.replace(first, "[[axis]]\nkey = \"a\"\nvalues = [1, 5]\n");
    let no_axis = &GOOD[..GOOD.find("[[axis]]").unwrap()];
    for (text, map) in [(GOOD, false), (numbers.as_str(), true), (no_axis, false)] {
        let sweep = Sweep::parse("page", text, &KNOWN).unwrap();
        let rows: Vec<Row> = (0..sweep.points()).map(|number| row(&sweep, number)).collect();
        let page = to_report(&sweep, "d", &rows).to_html();
        assert!(page.contains("hit_ppm") && page.contains("waf_ppm"), "{page}");
        assert_eq!(page.contains("hit_ppm: cache.frames by a"), map);
        assert_eq!(page.contains("cannot be"), sweep.points() > 3);
    }
}

#[test]
fn a_digest_is_of_the_parts_and_of_where_they_end() {
    let of = |parts: &[&str]| digest(parts.iter().map(|part| part.as_bytes()));
    assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    for other in [&["a", "bc"][..], &["abc"], &["ab", "c", ""], &["c", "ab"]] {
        assert_ne!(of(other), of(&["ab", "c"]));
    }
    assert_eq!(of(&["ab"]).len(), 32);
}

#[test]
fn the_manual_has_every_figure_and_its_example_is_right() {
    let manual = include_str!("../../../../docs/sweep.md");
    let names = figure_names();
    for (place, name) in names.iter().enumerate() {
        assert!(manual.contains(&format!("`{name}`")), "docs/sweep.md lacks {name}");
        assert!(!names[..place].contains(name), "{name} is there twice");
    }
    let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(Sweep::parse("the manual", example, &names).unwrap().points(), 18);
}
