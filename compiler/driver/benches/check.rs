//! Time to check recipes of growing length, without the start of a process: it should grow as the
//! text does. `cargo bench -p nrl-driver --bench check` prints a line per length.

#![expect(clippy::disallowed_macros, reason = "a benchmark prints")]

#[path = "../tests/generated/mod.rs"]
mod generated;

use std::collections::BTreeMap;
use std::time::Instant;

use nrl_base::SourceMap;
use nrl_driver::{Options, check};

fn main() {
    for lines in [200, 750, 1500, 3000, 6000] {
        let text = generated::generated(lines);
        let lines = text.lines().count();
        let files = BTreeMap::from([("a.nrl".to_string(), text)]);
        let once = || {
            let start = Instant::now();
            check(&files, &mut SourceMap::new(), "a.nrl", &Options::default());
            start.elapsed().as_secs_f64() * 1e3
        };
        let best = (0..5).map(|_| once()).fold(f64::INFINITY, f64::min);
        println!("{lines:>6} lines  {best:>7.1} ms  {:>6.1} us/line", best * 1e3 / lines as f64);
    }
}
