//! The page of a report in a browser that has no window: it is drawn whole, says nothing to the console, and shows the
//! numbers of the JSON that it carries.

#![expect(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests start a browser")]

use std::path::{Path, PathBuf};
use std::process::Command;

use nrl_planner::report::{Comparison, Report, page};

fn report() -> Report {
    serde_json::from_str(include_str!("fixtures/report.json")).expect("a report")
}

fn other() -> Report {
    let mut b = report();
    b.file = "other.nrl".into();
    b.steps[0].phases[0].seconds.value = 53.0;
    b
}

/// Looks at the page from inside and writes what it finds into the title of the document.
const LOOK: &str = r#"<script>
addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth > innerWidth + 1;
  const pictures = [...document.querySelectorAll("svg")].map(s => {
    const box = s.getBoundingClientRect();
    const out = [...s.querySelectorAll("text")].filter(t => {
      const b = t.getBoundingClientRect();
      return b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2 || b.bottom > box.bottom + 2;
    }).map(t => t.textContent);
    return { name: s.getAttribute("aria-label"), width: box.width, height: box.height, shapes: s.querySelectorAll("rect, circle").length, out };
  });
  const shown = [...document.querySelectorAll("[data-key]")].map(e =>
    [e.dataset.key, e.dataset.name || "", e.dataset.value, e.textContent]);
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const pre = document.createElement("pre");
  pre.id = "looked";
  pre.textContent = JSON.stringify({ wide, pictures, shown, plan });
  document.body.append(pre);
});
</script>"#;

fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// The document after it was loaded, and what the browser said.
fn loaded(name: &str, file: &Path, dark: bool) -> (String, String) {
    let profile = file.with_extension("profile");
    let mut command = Command::new(name);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args([
        "--enable-logging=stderr",
        "--window-size=1100,900",
        "--virtual-time-budget=4000",
    ]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let out = command.arg("--dump-dom").arg(format!("file://{}", file.display())).output();
    let out = out.expect("the browser starts");
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_browser_draws_the_page_with_the_numbers_of_the_json() {
    let Some(name) = browser() else {
        println!("skipped: no chromium here");
        return;
    };
    let (a, b) = (report(), other());
    let text = page(&a, Some(&b));
    assert!(!text.contains("http://") && !text.contains("https://"), "the page asks for nothing");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for dark in [false, true] {
        let file = folder.join(format!("plan-{dark}.html"));
        std::fs::write(&file, text.replace("</body>", &format!("{LOOK}</body>"))).expect("written");
        let (dom, said) = loaded(name, &file, dark);
        let console: Vec<&str> = said.lines().filter(|l| l.contains(":CONSOLE")).collect();
        assert!(console.is_empty(), "{console:?}");
        let looked = dom.split("<pre id=\"looked\">").nth(1).and_then(|t| t.split("</pre>").next());
        let looked = looked.expect("the page was loaded").replace("&lt;", "<").replace("&gt;", ">");
        let looked: serde_json::Value =
            serde_json::from_str(&looked.replace("&amp;", "&")).expect("JSON");
        check(&looked, &a, &b);
    }
}

fn check(looked: &serde_json::Value, a: &Report, b: &Report) {
    assert_eq!(looked["wide"], false, "the page is wider than its window");
    let pictures = looked["pictures"].as_array().expect("pictures");
    let names: Vec<&str> = pictures.iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "phases of a step",
            "schedule of a pipeline",
            "streams of a layer",
            "memory over a step",
            "memory by stage and term",
            "roofline",
            "two plans"
        ]
    );
    for p in pictures {
        assert!(p["width"].as_f64() > Some(300.0) && p["height"].as_f64() > Some(60.0), "{p}");
        assert!(p["shapes"].as_u64() > Some(1), "{p}");
        assert_eq!(p["out"], serde_json::json!([]), "text outside of its picture: {p}");
    }
    let plan: Report = serde_json::from_value(looked["plan"].clone()).expect("the report");
    assert_eq!(&plan, a, "the page carries the JSON of the report");
    // What is shown, by key, against what the JSON says.
    let shown = |key: &str| -> Vec<(String, f64)> {
        let all = looked["shown"].as_array().expect("numbers").iter();
        all.filter(|row| row[0] == key)
            .map(|row| {
                let value = row[2].as_str().and_then(|v| v.parse().ok()).expect("a number");
                (row[1].as_str().unwrap_or("").to_string(), value)
            })
            .collect()
    };
    let phases = a.steps.iter().flat_map(|s| &s.phases);
    let phases: Vec<(String, f64)> = phases.map(|p| (p.name.clone(), p.seconds.value)).collect();
    assert_eq!(shown("phase"), phases);
    let terms =
        a.memory.stages.iter().flat_map(|s| {
            s.terms.iter().map(move |t| (format!("{}: {}", s.name, t.name), t.bytes))
        });
    assert_eq!(shown("term"), terms.collect::<Vec<_>>());
    let layers = a.layers.iter().map(|l| (format!("{}, forward", l.phase), l.seconds));
    assert_eq!(shown("layer"), layers.collect::<Vec<_>>());
    assert_eq!(shown("step"), [(String::new(), 144.0)]);
    assert_eq!(shown("margin"), [(String::new(), 9_176_390_042.0)]);
    let c = Comparison::of(a, b);
    let rows = c.rows.iter().filter(|r| r.matters());
    let rows: Vec<(String, f64)> =
        rows.map(|r| (format!("{} {}", r.of, r.name), r.difference)).collect();
    assert_eq!(shown("difference"), rows);
}
