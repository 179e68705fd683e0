//! A report as one page that asks for nothing.
//!
//! The page follows the reader's choice of light or dark, prints, and reads without scripts. All of
//! it is in one file: pictures stand in it as SVG, and the content security policy at its top has
//! the browser refuse anything from elsewhere.

use serde::Serialize;

use crate::chart::stack_inline;
use crate::svg::{escape, style};
use crate::{Align, Cell, Chart, Table};

/// What a figure or a note says to the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// Neither good nor bad.
    #[default]
    Plain,
    /// A promise held.
    Good,
    /// A promise broken.
    Bad,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Bad => "bad",
        }
    }

    /// Colour alone must not carry the meaning, so a sign says it too.
    fn sign(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "<span aria-label=\"good\">✓ </span>",
            Tone::Bad => "<span aria-label=\"bad\">✗ </span>",
        }
    }
}

/// A figure that matters, shown large.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is.
    pub label: String,
    /// The figure with its unit.
    pub value: String,
    /// A line under it; may be empty.
    pub note: String,
    /// Whether it is good, bad or neither.
    pub tone: Tone,
}

impl Fact {
    /// A figure that is neither good nor bad.
    #[must_use]
    pub fn new(label: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Fact {
        Fact { label: label.into(), value: value.into(), note: note.into(), tone: Tone::Plain }
    }

    /// The same, good if `holds`, else bad.
    #[must_use]
    pub fn verdict(mut self, holds: bool) -> Fact {
        self.tone = if holds { Tone::Good } else { Tone::Bad };
        self
    }
}

/// One part of a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "block", rename_all = "kebab-case")]
pub enum Block {
    /// A heading.
    Heading {
        /// Its text.
        text: String,
    },
    /// A paragraph.
    Text {
        /// Its text.
        text: String,
    },
    /// A paragraph that stands out.
    Note {
        /// Its text.
        text: String,
        /// What it says to the reader.
        tone: Tone,
    },
    /// A list.
    List {
        /// Its entries.
        items: Vec<String>,
    },
    /// Figures, shown large.
    Facts {
        /// The figures.
        facts: Vec<Fact>,
    },
    /// A table.
    Table {
        /// What it shows; may be empty.
        caption: String,
        /// The table.
        table: Table,
    },
    /// Charts under each other, their plots aligned.
    Figure {
        /// What to see in it; may be empty.
        caption: String,
        /// The charts.
        charts: Vec<Chart>,
    },
    /// Text as a program printed it.
    Verbatim {
        /// The text.
        text: String,
    },
}

/// A report: a title and blocks in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    title: String,
    subtitle: String,
    blocks: Vec<Block>,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>) -> Report {
        Report { title: title.into(), subtitle: subtitle.into(), blocks: Vec::new() }
    }

    /// Adds any block.
    pub fn push(&mut self, block: Block) -> &mut Report {
        self.blocks.push(block);
        self
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: impl Into<String>) -> &mut Report {
        self.push(Block::Heading { text: text.into() })
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) -> &mut Report {
        self.push(Block::Text { text: text.into() })
    }

    /// Adds a paragraph that stands out.
    pub fn note(&mut self, tone: Tone, text: impl Into<String>) -> &mut Report {
        self.push(Block::Note { text: text.into(), tone })
    }

    /// Adds a list.
    pub fn list<T: Into<String>>(&mut self, items: impl IntoIterator<Item = T>) -> &mut Report {
        self.push(Block::List { items: items.into_iter().map(Into::into).collect() })
    }

    /// Adds figures, shown large.
    pub fn facts(&mut self, facts: Vec<Fact>) -> &mut Report {
        self.push(Block::Facts { facts })
    }

    /// Adds a table.
    pub fn table(&mut self, caption: impl Into<String>, table: Table) -> &mut Report {
        self.push(Block::Table { caption: caption.into(), table })
    }

    /// Adds charts under each other, their plots aligned.
    pub fn figure(&mut self, caption: impl Into<String>, charts: Vec<Chart>) -> &mut Report {
        self.push(Block::Figure { caption: caption.into(), charts })
    }

    /// Adds text as a program printed it.
    pub fn verbatim(&mut self, text: impl Into<String>) -> &mut Report {
        self.push(Block::Verbatim { text: text.into() })
    }

    /// The whole report, data of its charts included, as JSON. Values that are not finite become
    /// null.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values always serialize")
    }

    /// The page.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{PAGE_STYLE}{}\n</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
            style()
        );
        if !self.subtitle.is_empty() {
            page.push_str(&format!("<p class=\"subtitle\">{}</p>\n", escape(&self.subtitle)));
        }
        for (index, block) in self.blocks.iter().enumerate() {
            page.push_str(&block_html(block, index));
        }
        page.push_str("</main>\n</body>\n</html>\n");
        page
    }
}

fn block_html(block: &Block, index: usize) -> String {
    match block {
        Block::Heading { text } => format!("<h2>{}</h2>\n", escape(text)),
        Block::Text { text } => format!("<p>{}</p>\n", escape(text)),
        Block::Note { text, tone } => {
            format!("<p class=\"note {}\">{}{}</p>\n", tone.class(), tone.sign(), escape(text))
        }
        Block::List { items } => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escape(item))).collect();
            format!("<ul>\n{items}</ul>\n")
        }
        Block::Facts { facts } => {
            let facts: String = facts.iter().map(fact_html).collect();
            format!("<dl class=\"facts\">\n{facts}</dl>\n")
        }
        Block::Table { caption, table } => table_html(caption, table),
        Block::Figure { caption, charts } => {
            // Clip paths are named by what they clip; in one page the names must differ by picture.
            let prefix = format!("b{index}-");
            let svg = stack_inline(charts)
                .replace("clipPath id=\"", &format!("clipPath id=\"{prefix}"))
                .replace("url(#", &format!("url(#{prefix}"));
            let caption = caption_html("figcaption", caption);
            format!("<figure>\n{svg}{caption}</figure>\n")
        }
        Block::Verbatim { text } => format!("<pre>{}</pre>\n", escape(text)),
    }
}

fn fact_html(fact: &Fact) -> String {
    let (class, sign) = (fact.tone.class(), fact.tone.sign());
    let (label, value) = (escape(&fact.label), escape(&fact.value));
    let note = match fact.note.as_str() {
        "" => String::new(),
        note => format!("<dd class=\"small\">{}</dd>", escape(note)),
    };
    format!("<div class=\"{class}\"><dt>{label}</dt><dd class=\"value\">{sign}{value}</dd>{note}</div>\n")
}

fn table_html(caption: &str, table: &Table) -> String {
    let class = |index: usize| match table.columns()[index].align {
        Align::Left => "",
        Align::Right => " class=\"figure\"",
    };
    let heads: String = table
        .columns()
        .iter()
        .enumerate()
        .map(|(index, column)| format!("<th scope=\"col\"{}>{}</th>", class(index), escape(&column.name)))
        .collect();
    let cell = |(index, cell): (usize, &Cell)| {
        let (tone, sign, text) = (cell.tone.class(), cell.tone.sign(), escape(&cell.text));
        format!("<td{}><span class=\"{tone}\">{sign}{text}</span></td>", class(index))
    };
    let rows: String = table
        .rows()
        .iter()
        .map(|row| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()))
        .collect();
    let caption = caption_html("caption", caption);
    format!(
        "<div class=\"scroll\"><table>{caption}<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn caption_html(element: &str, caption: &str) -> String {
    match caption {
        "" => String::new(),
        caption => format!("<{element}>{}</{element}>\n", escape(caption)),
    }
}

const PAGE_STYLE: &str = "\
:root{--paper:#ffffff;--ink:#1b1f23;--soft:#57606a;--line:#d8dee4;--panel:#f6f8fa;--good:#116b43;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e4e6e8;--soft:#a3a9af;--line:#30363d;--panel:#1c2126;\
--good:#4ec58f;--bad:#ff8d82}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:920px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:28px;line-height:1.25;margin:0 0 4px}
h2{font-size:20px;margin:40px 0 8px;padding-bottom:6px;border-bottom:1px solid var(--line)}
p,ul{margin:10px 0;max-width:76ch}
.subtitle{color:var(--soft);margin:0 0 20px}
.note{border-left:4px solid var(--line);background:var(--panel);padding:8px 14px}
.note.good{border-color:var(--good)}.note.bad{border-color:var(--bad)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:18px 0}
.facts>div{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.facts dt{color:var(--soft);font-size:13px}.facts dd{margin:0}
.facts .value{font-size:23px;font-weight:600;font-variant-numeric:tabular-nums}
.facts .small{color:var(--soft);font-size:13px}
.facts .good .value,td .good{color:var(--good)}.facts .bad .value,td .bad{color:var(--bad)}
.scroll{overflow-x:auto;margin:14px 0}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;min-width:60%}
caption{caption-side:top;text-align:left;color:var(--soft);padding-bottom:6px}
th{font-weight:600;text-align:left;border-bottom:2px solid var(--line)}
td{border-bottom:1px solid var(--line)}
th,td{padding:5px 16px 5px 0;vertical-align:top}
th.figure,td.figure{text-align:right;white-space:nowrap}
figure{margin:18px 0}figcaption{color:var(--soft);font-size:14px;max-width:76ch}
svg.chart{display:block;width:100%;height:auto}
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto;\
font:13px/1.45 ui-monospace,'DejaVu Sans Mono',monospace}
@media print{main{max-width:none;padding:0}figure,table,.facts{break-inside:avoid}}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, LineChart, Series, Unit};

    fn report() -> Report {
        let mut chart = LineChart::new("Rate", Axis::new("Time", Unit::Seconds), Axis::new("Rate", Unit::PerSecond));
        chart.series.push(Series::new("a", vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)]));
        let mut table = Table::new().left("run").right("lost");
        table.row([Cell::from("adaptive"), Cell::verdict(true, "0")]);
        let mut report = Report::new("A <run>", "on \"this\" machine");
        report
            .facts(vec![Fact::new("Ratio", "1.98", "predicted 2.00").verdict(true)])
            .heading("Result & cause")
            .text("It held.")
            .note(Tone::Bad, "One <b>bad</b> thing.")
            .list(["one", "two"])
            .table("Totals", table)
            .figure("The rate.", vec![chart.clone().into()])
            .figure("Again.", vec![chart.into()])
            .verbatim("$ osier demo\n<ok>");
        report
    }

    #[test]
    fn a_page_asks_for_nothing() {
        let page = report().to_html();
        for bad in ["http://", "https://", "src=", "href=", "@import", "<script", "url(h", "//"] {
            assert!(!page.contains(bad), "{bad} in the page");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn text_stays_text() {
        let page = report().to_html();
        assert!(page.contains("<title>A &lt;run&gt;</title>"));
        assert!(page.contains("One &lt;b&gt;bad&lt;/b&gt; thing.") && page.contains("&lt;ok&gt;"));
    }

    #[test]
    fn every_element_that_is_opened_is_closed() {
        let page = report().to_html();
        for element in
            ["main", "figure", "table", "svg", "g", "dl", "div", "ul", "li", "tr", "td", "th", "pre", "p", "h2"]
        {
            let opened = page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
            assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        }
    }

    #[test]
    fn names_inside_pictures_differ_in_one_page() {
        let page = report().to_html();
        let mut names: Vec<&str> =
            page.split("clipPath id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(names.len(), 2);
        names.dedup();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn json_holds_the_data() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["blocks"][6]["charts"][0]["series"][0]["points"][2][1], 3.0);
        assert!(json["blocks"][6]["charts"][0]["series"][0]["points"][1][1].is_null());
        assert_eq!(report().to_html(), report().to_html());
    }
}
