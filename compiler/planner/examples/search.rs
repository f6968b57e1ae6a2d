//! What `nrlc plan RECIPE --search` prints, without the rest of the program: `search RECIPE [PIN..]`.

use std::time::Instant;

use nrl_base::Files;
use nrl_planner::input::{Input, Request};
use nrl_planner::search::{Goal, SearchOptions, search};

struct Disk;

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|e| e.to_string())
    }
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let memory = args.iter().any(|a| a == "memory");
    args.retain(|a| a != "memory");
    let path = args.first().cloned().unwrap_or_default();
    let (input, findings) = Input::open(&Disk, &Request { path, ..Request::default() });
    let Some(input) = input else { return println!("{:?}", findings.found) };
    let goal = if memory { Goal::Memory } else { Goal::Time };
    let pins = args.into_iter().skip(1).collect();
    let how = SearchOptions { goal, pins, ..SearchOptions::default() };
    let start = Instant::now();
    match search(&input, &how) {
        Ok(found) => println!("{}\n{}", found.text(), found.diff()),
        Err(f) => f.found.iter().for_each(|d| println!("{}: {}", d.code, d.message)),
    }
    println!("{:.2} s", start.elapsed().as_secs_f64());
}
