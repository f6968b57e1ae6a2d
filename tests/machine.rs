//! Plans of this machine: by what was measured of it, and beside its own runs.

use serde_json::Value;

use crate::support::{Bench, DATA, recipe};

/// A machine as `nrlc calibrate` writes it, with round numbers.
const MEASURED: &str = r#"{
  "version": 1, "machine": "a box", "cores": 2, "memory": 8e9, "date": "2026-01-31", "engine": "nrlc cpu",
  "ranks": [{
    "ranks": 1, "threads": 2, "flops": 1e11, "bandwidth": 1e10, "link": 1e9,
    "rates": {"product": 0.5, "launch": 1e-5, "fixed": 0.0, "overlap": 0.0, "operand": 4.0, "inline": true},
    "host": {"job": 1e-4}, "median": 0.02, "p90": 0.1
  }],
  "rows": []
}"#;

fn bench() -> Bench {
    let b = Bench::new();
    b.model("llama", "model").write("data.jsonl", DATA).write("r.nrl", recipe(&[]));
    b
}

#[test]
fn plans_read_what_was_measured() {
    let b = bench();
    let plan = |args: &[&str]| -> Value {
        let ran = b.run(&[&["plan", "r.nrl", "--format", "json"], args].concat());
        ran.succeeds();
        serde_json::from_str(&ran.out).expect("JSON")
    };
    let rates = |v: &Value| {
        let all = v["assumptions"].as_array().expect("assumptions").clone();
        let one = all.iter().find(|a| a["what"] == "rates").expect("rates");
        (
            one["value"].as_str().unwrap_or("").to_string(),
            one["source"].as_str().unwrap_or("").to_string(),
        )
    };
    let (value, source) = rates(&plan(&[]));
    assert_eq!((value.as_str(), source.as_str()), ("a core of 60 GFLOP/s", "roofline"));
    b.write("config/nrlc/calibration.json", MEASURED);
    let (value, source) = rates(&plan(&[]));
    let measured = "nrlc cpu on a box, 1 rank of 2 threads, measured 2026-01-31";
    assert_eq!((value.as_str(), source.as_str()), (measured, "calibrated"));
    // Another file goes before it; one of a later version is refused where it was asked for, and left alone elsewhere.
    b.write("other.json", MEASURED.replace("a box", "another"));
    assert!(rates(&plan(&["--tables", "other.json"])).0.contains("another"));
    b.write("later.json", MEASURED.replace("\"version\": 1", "\"version\": 2"));
    b.run(&["plan", "r.nrl", "--tables", "later.json"]).fails("file-not-read", &["later.json"]);
    // What is wrong is said of the kind of file that it is.
    b.write("text.json", "rates: 1");
    b.write("bare.json", "{}");
    b.write("run.json", r#"{"version": "1", "entries": [], "runs": {"x": ["A100, x"]}}"#);
    for (file, why) in
        [("text.json", "line 1"), ("bare.json", "`ranks`"), ("run.json", "`A100, x`")]
    {
        b.run(&["plan", "r.nrl", "--tables", file]).fails("file-not-read", &[file, why]);
    }
    b.write("config/nrlc/calibration.json", MEASURED.replace("\"version\": 1", "\"version\": 2"));
    assert_eq!(rates(&plan(&[])).1, "roofline");
}

#[test]
fn a_run_is_beside_the_forecast_of_its_recipe() {
    let b = bench();
    b.write("config/nrlc/calibration.json", MEASURED);
    b.run(&["run", "r.nrl", "--out", "out", "--quiet"]).succeeds();
    let ran = b.run(&["validate", "out", "--recipe", "r.nrl", "--format", "json"]);
    ran.succeeds();
    let v: Value = serde_json::from_str(&ran.out).expect("JSON");
    let lines = v["lines"].as_array().expect("lines");
    let kinds: Vec<&str> = lines.iter().filter_map(|l| l["metric"].as_str()).collect();
    assert_eq!(kinds, ["sample", "update", "step"]);
    for l in lines {
        let (p, m) =
            (l["predicted"].as_f64().expect("a number"), l["measured"].as_f64().expect("a number"));
        assert!(
            p > 0.0
                && m > 0.0
                && (l["error"].as_f64().expect("an error") - (p / m - 1.0)).abs() < 1e-9
        );
    }
    // Metrics alone do not say what ran.
    b.write("m.jsonl", "{\"timing/train/total_step_time\": 4.0}\n");
    let ran = b.run(&["validate", "m.jsonl"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("`--recipe FILE`"), "{}", ran.err);
}

/// A check decides budgets of time by what was measured, as a plan does: a machine of a thousand FLOP/s keeps none.
#[test]
fn checks_read_what_was_measured() {
    let b = bench();
    b.write("r.nrl", recipe(&[]).replacen("  step {", "  require step_time < 1 h\n  step {", 1));
    b.run(&["check", "r.nrl"]).succeeds();
    b.write("config/nrlc/calibration.json", MEASURED.replace("\"flops\": 1e11", "\"flops\": 1e3"));
    b.run(&["check", "r.nrl"]).fails("requirement-fails", &["step_time < 1 h", "a box"]);
}
