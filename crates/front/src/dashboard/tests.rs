use std::sync::Mutex;

use super::*;

struct Fixed(Mutex<Result<Status, String>>);

impl Source for Fixed {
    fn look(&self) -> Result<Status, String> {
        self.0.lock().expect("nobody panics with it").clone()
    }
}

fn fixed(status: Result<Status, String>) -> Fixed {
    Fixed(Mutex::new(status))
}

fn traffic(kind: &'static str) -> Traffic {
    Traffic { kind, commands: 6, failed: 1, bytes: 4096, time_ns: 1_500_000_000, classes: vec![1, 2, 3] }
}

fn live() -> Live {
    let process = DomainProcess { pid: 7, resident_bytes: Some(1 << 20) };
    let figures = serde_json::json!({"flushes": 3, "flash": {"pages_read": 9}});
    Live {
        at_ns: 5,
        serves: true,
        temperature_celsius: 41.5,
        speed_permille: 800,
        busy_permille: [100, 250],
        pending: 2,
        deaths: 1,
        domains: [process, DomainProcess { pid: 8, resident_bytes: None }],
        traffic: vec![traffic("read"), traffic("write")],
        latency_bounds_ns: vec![1_000, 1_000_000],
        actors: vec![Actor {
            name: "main/\"zip\"".into(),
            place: "device".into(),
            bytes: [1, 2],
            busy_ns: [3, 4],
            failed: 0,
        }],
        moves: 1,
        recent_moves: Vec::new(),
        clients: vec![Client { name: "nbd d".into(), commands: 1, bytes: 2 }],
        dies: Dies { per_channel: 2, at_ns: 5, busy_ns: vec![10, 20, 30, 40] },
        figures: figures.as_object().cloned().unwrap_or_default(),
    }
}

fn status(live: Option<Live>) -> Status {
    Status { device: "d".into(), profile: "wio".into(), capacity_bytes: 1 << 30, live }
}

fn body(source: &Fixed, path: &str) -> (u16, String) {
    let response = answer(source, path);
    (response.status, String::from_utf8(response.body).expect("text"))
}

/// Samples by their name and labels; every line has to be one of the format's.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    let mut of_type = None;
    let mut found = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.split(' ');
            let (word, name) = (words.next(), words.next().expect("a name"));
            assert!(matches!(word, Some("HELP" | "TYPE")), "{line}");
            if word == Some("TYPE") {
                of_type = Some(name.to_owned());
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let family = of_type.as_deref().expect("a type goes before its samples");
        assert!(name.starts_with(family), "{line} stands under {family}");
        assert!(found.insert(name.to_owned(), value.parse().expect("a number")).is_none(), "{line} twice");
    }
    found
}

#[test]
fn metrics_are_in_prometheus_format_and_have_the_figures() {
    let (code, text) = body(&fixed(Ok(status(Some(live())))), "/metrics");
    assert_eq!(code, 200);
    let found = samples(&text);
    let expected = [
        ("osier_up{device=\"d\"}", 1.0),
        ("osier_temperature_celsius{device=\"d\"}", 41.5),
        ("osier_busy_ratio{device=\"d\",domain=\"device\"}", 0.25),
        ("osier_commands_total{device=\"d\",kind=\"read\"}", 6.0),
        ("osier_command_seconds_bucket{device=\"d\",kind=\"write\",le=\"0.001\"}", 3.0),
        ("osier_command_seconds_bucket{device=\"d\",kind=\"write\",le=\"+Inf\"}", 6.0),
        ("osier_command_seconds_count{device=\"d\",kind=\"write\"}", 6.0),
        ("osier_command_seconds_sum{device=\"d\",kind=\"write\"}", 1.5),
        ("osier_actor_on_device{device=\"d\",actor=\"main/\\\"zip\\\"\"}", 1.0),
        ("osier_die_busy_seconds_total{device=\"d\",channel=\"1\",die=\"0\"}", 3e-8),
        ("osier_device_flushes{device=\"d\"}", 3.0),
        ("osier_flash_pages_read{device=\"d\"}", 9.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name} in\n{text}");
    }
    assert!(
        !found.contains_key("osier_resident_bytes{device=\"d\",domain=\"device\"}"),
        "what is not known is left out"
    );
}

#[test]
fn health_is_of_the_device_and_not_of_the_dashboard() {
    let source = fixed(Ok(status(Some(live()))));
    assert_eq!(body(&source, "/healthz"), (200, "ok\n".into()));
    *source.0.lock().unwrap() = Ok(status(Some(Live { serves: false, ..live() })));
    assert_eq!(body(&source, "/healthz").0, 503);
    *source.0.lock().unwrap() = Ok(status(None));
    assert_eq!(body(&source, "/healthz").0, 503);
    assert_eq!(samples(&body(&source, "/metrics").1).get("osier_up{device=\"d\"}"), Some(&0.0));
    *source.0.lock().unwrap() = Err("there is no device".into());
    assert_eq!(body(&source, "/healthz"), (503, "there is no device\n".into()));
    assert_eq!(body(&source, "/api/status").0, 503);
}

#[test]
fn the_page_asks_for_nothing_from_elsewhere() {
    let source = fixed(Ok(status(None)));
    for path in ["/", "/page.js", "/page.css"] {
        let (code, text) = body(&source, path);
        assert_eq!(code, 200);
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!outside.contains("://"), "{path} names another place");
    }
    assert_eq!(body(&source, "/../etc/passwd").0, 404);
}
