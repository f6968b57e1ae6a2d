//! Views of a report that was written by hand, so that no change of rates moves them.

use nrl_planner::report::{Comparison, Report, screen};

fn report() -> Report {
    serde_json::from_str(include_str!("fixtures/report.json")).expect("a report")
}

#[test]
fn the_screen_of_a_report() {
    insta::assert_snapshot!(screen(&report(), 118));
}

#[test]
fn no_line_is_wider_than_was_asked_for() {
    for width in [100, 110, 120] {
        for line in screen(&report(), width).lines() {
            let n = line.chars().count();
            // The mark behind the fullest stage may stand out: tables do not wrap.
            assert!(n <= width + 2, "{n} columns of {width}: {line}");
        }
    }
}

#[test]
fn what_does_not_fit_is_said_loudly() {
    let mut r = report();
    let stage = &mut r.memory.stages[2];
    stage.bytes = stage.device_bytes + 13.0 * 1_073_741_824.0;
    stage.margin_bytes = -13.0 * 1_073_741_824.0;
    r.memory.fits = false;
    let text = screen(&r, 118);
    assert!(text.contains("FAILS"), "{text}");
    assert!(text.contains("`update policy` DOES NOT FIT: it needs 92.6 GiB, 13.0 more"), "{text}");
}

#[test]
fn the_comparison_of_two_reports() {
    let a = report();
    let mut b = report();
    b.file = "other.nrl".into();
    b.steps[0].phases[0].seconds.value = 53.0;
    b.steps[0].seconds.value = 113.0;
    b.run.seconds.value = 56_500.0;
    b.memory.stages[2].terms.retain(|t| t.name != "gradients");
    b.memory.stages[2].bytes -= 9_126_805_504.0;
    let c = Comparison::of(&a, &b);
    insta::assert_snapshot!(c.text());
    // Every step second that differs is a second of a phase: 84 s become 53.
    let of = |kind: &str| c.rows.iter().filter(|r| r.of == kind).map(|r| r.difference).sum::<f64>();
    assert_eq!((of("step"), of("phase")), (-31.0, -31.0));
    assert_eq!(Comparison::of(&a, &a).text(), "math_70b.nrl against math_70b.nrl\nno difference\n");
}

#[test]
fn a_report_reads_back_as_it_was_written() {
    let r = report();
    let text = serde_json::to_string(&r).expect("JSON");
    assert_eq!(serde_json::from_str::<Report>(&text).expect("a report"), r);
}

/// Every field of the schema is described, and nothing else.
#[test]
fn the_page_of_the_schema_names_every_field() {
    let page = include_str!("../../../docs/plan-json.md");
    let value = serde_json::to_value(report()).expect("JSON");
    let mut missing = vec![];
    walk(&value, &mut |name| {
        if !page.contains(&format!("`{name}`")) && !missing.contains(&name.to_string()) {
            missing.push(name.to_string());
        }
    });
    assert!(missing.is_empty(), "docs/plan-json.md does not name {missing:?}");
}

fn walk(value: &serde_json::Value, see: &mut dyn FnMut(&str)) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, inner) in map {
                see(name);
                walk(inner, see);
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|x| walk(x, see)),
        _ => {}
    }
}
