//! Tables of measured runs beside what the planner says of them.
//!
//! In: a table. Out: for each row the prediction, its error and where the numbers come from, or the reason why
//! the row cannot be said. Each row goes the way of a recipe: text, compiler, plan, simulator.

pub mod calibrate;
pub mod fit;
mod layer;
mod memory;
mod metric;
mod names;
mod read;
mod recipe;
mod verdict;

use std::collections::{BTreeMap, HashMap};

use nrl_base::SourceMap;
use nrl_driver::{Compiled, Options, Timed};
use nrl_sim::nearby::Setting;
use nrl_sim::rates::{Rates, Speed};
use nrl_sim::style::Style;
use nrl_sim::train::Took;

pub use memory::{Bytes, says as bytes_of};
pub use metric::{Says, is_memory};
pub use read::{Row, read};
pub use recipe::{Asked, Layout};
pub use verdict::{Line, Summary, Verdict};

/// A layout of a model on a machine, compiled: several rows may measure it.
pub struct Case {
    pub asked: Asked,
    pub update: Timed,
    /// Bytes by the name of the stack that was asked for.
    pub bytes: BTreeMap<String, Bytes>,
}

/// A table, ready to be predicted again and again.
pub struct Table {
    pub rows: Vec<Row>,
    /// One per row: its case, or why it has none.
    pub cases: Vec<Result<usize, String>>,
    pub all: Vec<Case>,
}

impl Table {
    /// Compiles every row of a table, on all cores.
    pub fn new(rows: Vec<Row>) -> Table {
        let rows: Vec<Row> = rows.iter().map(recipe::filled).collect();
        let mut index: HashMap<String, usize> = HashMap::new();
        let mut wanted: Vec<(Asked, Vec<Row>)> = vec![];
        let mut cases: Vec<Result<usize, String>> = vec![];
        for row in &rows {
            let said = row.wrong.clone().map_or(Ok(()), Err).and_then(|()| metric::known(row));
            cases.push(said.and_then(|()| recipe::recipe(row)).map(|asked| {
                let key = format!("{:?} {} {:?}", asked.files, asked.stack, asked.compute);
                let at = *index.entry(key).or_insert_with(|| {
                    wanted.push((asked, vec![]));
                    wanted.len() - 1
                });
                if is_memory(&row.metric) {
                    wanted[at].1.push(row.clone());
                }
                at
            }));
        }
        let made = nrl_driver::each(&wanted, &|(asked, rows)| compile(asked, rows));
        let mut all = vec![];
        let mut at: Vec<Result<usize, String>> = vec![];
        for case in made {
            at.push(case.map(|c| {
                all.push(c);
                all.len() - 1
            }));
        }
        let cases = cases.into_iter().map(|c| c.and_then(|i| at[i].clone())).collect();
        Table { rows, cases, all }
    }
}

impl Case {
    /// Seconds of an update on a stack.
    pub fn time(&self, rates: &Rates) -> Took {
        let speed = Speed { machine: &self.update.machine, rates, compute: self.asked.compute };
        self.update.job.run(&speed)
    }

    /// Seconds of the last group's layer for one micro-batch, forward and backward.
    pub fn layer(&self, rates: &Rates) -> Option<(f64, f64)> {
        let Timed { job, machine, .. } = &self.update;
        let speed = Speed { machine, rates, compute: self.asked.compute };
        job.layers(&speed).pop()
    }

    /// Properties of the stack on its device.
    pub fn style(&self) -> Style {
        Style::of(&self.asked.stack, &self.update.machine.name)
    }

    /// What runs like it are known by.
    pub fn setting(&self) -> Setting {
        let device = &self.update.machine.name;
        Setting::of(&self.update.job, device, &self.asked.stack, self.asked.compute)
    }
}

/// Bytes that layers keep under tensor parallelism alone, with nothing computed again: what percentages of
/// Korthikanti et al. 2022 refer to.
fn baseline(row: &Row) -> Result<f64, String> {
    let plain = Row { sp: "False".into(), recompute: "none".into(), ..row.clone() };
    let asked = recipe::recipe(&plain)?;
    let c = compiled(&asked)?;
    memory::bytes(&c, &plain, &asked).map(|b| b.kept).ok_or_else(|| "no machine".into())
}

fn compiled(asked: &Asked) -> Result<Compiled, String> {
    let mut sources = SourceMap::new();
    let (compiled, found) =
        nrl_driver::compile(&asked.files, &mut sources, "r.nrl", &Options::default());
    compiled.ok_or_else(|| {
        let first = found.iter().find(|d| d.is_error());
        first.map_or("it does not compile".into(), |d| d.message.clone())
    })
}

fn compile(asked: &Asked, rows: &[Row]) -> Result<Case, String> {
    let c = compiled(asked)?;
    let mut bytes = BTreeMap::new();
    for row in rows {
        let name = memory::key(row);
        let known = bytes.get(&name).is_some_and(|b: &Bytes| b.baseline > 0.0);
        let percent = row.metric.contains("pct");
        if known || (!percent && bytes.contains_key(&name)) {
            continue;
        }
        let Some(mut b) = memory::bytes(&c, row, asked) else { continue };
        if percent {
            b.baseline = baseline(row)?;
        }
        bytes.insert(name, b);
    }
    let mut update = nrl_driver::updates(&c).into_iter().next().ok_or("no machine")?;
    if asked.layout.paired {
        update.job.crossing = recipe::CROSSING;
    }
    Ok(Case { asked: asked.clone(), update, bytes })
}
