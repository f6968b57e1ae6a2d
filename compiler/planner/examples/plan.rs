//! Try-out.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]
use nrl_planner::input::{Input, Request};
use nrl_planner::report::*;
struct Disk;
impl nrl_base::Files for Disk {
    fn read(&self, p: &str) -> Result<Vec<u8>, String> {
        std::fs::read(p).map_err(|e| e.to_string())
    }
}
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args[0] == "repl" {
        let request = Request { path: args[1].clone(), ..Request::default() };
        let (mut session, _) = nrl_planner::session::Session::new(&Disk, &request)
            .map_err(|f| println!("{:?}", f.found))
            .unwrap();
        println!("{}", session.greeting());
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let t = std::time::Instant::now();
            let a = session.line(&line);
            println!("> {line}   [{:?}]\n{}", t.elapsed(), a.text);
            if let Some((p, _)) = a.write {
                println!("writes {p}");
            }
        }
        return;
    }
    let request = Request { path: args[0].clone(), ..Request::default() };
    let (input, found) = Input::open(&Disk, &request);
    for d in &found.found {
        println!("{} {}", d.code, d.message);
    }
    let Some(input) = input else { return };
    let t = std::time::Instant::now();
    let (planned, found) = input.plan();
    for d in &found.found {
        println!("{:?} {} {}", d.severity, d.code, d.message);
    }
    let Some(p) = planned else { return };
    let mut r = Report::of(&Made {
        compiled: &p.compiled,
        forecast: p.forecast.as_ref(),
        sources: &p.sources,
        file: &args[0],
    });
    let u = std::time::Instant::now();
    r.changes = changes(&input, &p);
    println!("changes {:?}", u.elapsed());
    println!("{}", screen(&r, 118));
    println!("{:?}", t.elapsed());
    if let Some(b) = args.get(1) {
        let (input, _) = Input::open(&Disk, &Request { path: b.clone(), ..Request::default() });
        let p = input.unwrap().plan().0.unwrap();
        let o = Report::of(&Made {
            compiled: &p.compiled,
            forecast: p.forecast.as_ref(),
            sources: &p.sources,
            file: b,
        });
        println!("{}", Comparison::of(&r, &o).text());
        std::fs::write("/tmp/sc/page.html", page(&r, Some(&o))).unwrap();
    } else {
        std::fs::write("/tmp/sc/page.html", page(&r, None)).unwrap();
    }
}
