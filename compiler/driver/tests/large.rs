//! A recipe of thousands of lines checks like a short one.

mod generated;

use std::collections::BTreeMap;

use nrl_base::SourceMap;
use nrl_driver::{Options, check};

#[test]
fn three_thousand_lines_check() {
    let text = generated::generated(3000);
    assert!(text.lines().count() >= 3000, "{} lines", text.lines().count());
    let files = BTreeMap::from([("a.nrl".to_string(), text)]);
    let (compiled, found) = check(&files, &mut SourceMap::new(), "a.nrl", &Options::default());
    assert!(found.is_empty(), "{found:#?}");
    assert!(compiled.is_some());
}
