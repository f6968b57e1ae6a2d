//! Runs that were measured near what is predicted.
//!
//! In: settings (a stack on a device, a model and its layout, as numbers) of runs and how far off the rates were for each. Out: for
//! a setting, the factor that the runs like it ask for, and how like it the nearest is. This is kriging (Krige 1951; Rasmussen and Williams
//! 2006, chapter 2): what rates leave unexplained is alike where settings are alike, and far from all runs the factor is 1.

use serde::{Deserialize, Serialize};

use crate::rates::Compute;
use crate::style::{Style, version};
use crate::train::Job;
use crate::work::{Item, Kind};

/// Sizes of a setting.
pub const SIZES: usize = 12;

/// A stack on a device and the job that it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub device: String,
    /// Family and marks: [`Style::name`].
    pub stack: String,
    /// Months, so that versions of one time are near; 0 if it is not known.
    pub version: f64,
    pub compute: Compute,
    /// Layers of experts.
    pub experts: bool,
    /// Logarithms to base 2, in the order of [`REACH`].
    pub sizes: [f64; SIZES],
}

/// A run that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Run {
    pub setting: Setting,
    /// What it adds to the logarithm of the factor of a setting, by how alike they are.
    pub pull: f64,
}

/// What runs say of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// Logarithm of the factor.
    pub log: f64,
    /// The part of it that versions, number types and devices have, whatever the layout.
    pub what: f64,
    /// How alike the nearest run is: 0 not at all, 1 the same.
    pub alike: f64,
}

/// Over how many doublings of a size runs stay alike: tensor parallel ranks, stages, chunks of a stage, ranks of a ring, ranks of
/// experts, tokens of a micro-batch on a rank, tokens that attention sees, ranks, micro-batches, layers, weights of a layer,
/// FLOPs backward for each forward. These and the deviations below are those with the smallest errors where the published runs
/// of one half of each source predict the other half; half or twice as much of any of them changes little.
pub const REACH: [f64; SIZES] = [0.7, 2.8, 2.0, 2.8, 1.0, 1.0, 1.0, 6.0, 4.0, 2.0, 2.8, 0.5];

/// Months after which versions are a third as alike.
const MONTHS: f64 = 16.0;

/// Deviations of what settings of one stack have in common, of a logarithm: those of one number type; of one kind of layers on one
/// device, in one version; with layouts near each other, and those of versions near each other too.
const COMPUTE: f64 = 0.08;
const DEVICE: f64 = 0.08;
const VERSION: f64 = 0.035;
const LAYOUT: f64 = 0.12;
const LAYOUT_IN_VERSION: f64 = 0.2;
/// Share of what layouts have in common that all devices have.
const ANY_DEVICE: f64 = 0.5;

impl Setting {
    /// The setting of a job on a device by a stack.
    pub fn of(job: &Job, device: &str, stack: &str, compute: Compute) -> Setting {
        let size = |axis: &str| job.mesh.size(axis) as f64;
        let (mut layers, mut weights, mut forward, mut backward) = (0.0, 0.0, 0.0, 0.0);
        let (mut tokens, mut seen) = (1.0f64, 1.0f64);
        let mut experts = false;
        for group in &job.work.layers {
            let n = group.count as f64;
            layers += n;
            for item in &group.each.forward {
                experts |= item.is_routed();
                match item.kind {
                    Kind::Product { m, n: columns, k, batch } if batch <= 1.0 => {
                        tokens = tokens.max(m);
                        weights += n * item.count * columns * k;
                    }
                    Kind::Attention { context, .. } => seen = seen.max(context),
                    _ => {}
                }
            }
            let flops = |items: &[Item]| n * items.iter().map(Item::flops).sum::<f64>();
            forward += flops(&group.each.forward);
            backward += flops(&group.each.backward);
        }
        let tp = size("tp");
        let sizes = [
            tp,
            size("pp"),
            job.chunks as f64,
            size("cp"),
            size("ep"),
            tokens,
            seen,
            job.mesh.ranks() as f64,
            job.micro as f64,
            layers,
            tp * weights / f64::max(1.0, layers),
            if forward > 0.0 { backward / forward } else { 1.0 },
        ];
        Setting {
            device: device.to_string(),
            stack: Style::of(stack, device).name(),
            version: months(version(stack)),
            compute,
            experts,
            sizes: sizes.map(|x| f64::max(x, 1e-3).log2()),
        }
    }

    /// What the logarithms of their factors have in common, whatever the layouts: a variance.
    pub fn shares(&self, other: &Setting) -> f64 {
        if self.stack != other.stack {
            return 0.0;
        }
        let if_so = |so: bool, deviation: f64| if so { deviation * deviation } else { 0.0 };
        let kind = self.experts == other.experts;
        let compute = self.compute == other.compute;
        let of_version = if_so(kind, VERSION) + if_so(kind && compute, VERSION);
        let of_device = if_so(kind && self.device == other.device, DEVICE);
        if_so(compute, COMPUTE) + (of_version + of_device) * self.time(other)
    }

    /// What they have in common by their layouts.
    pub fn lies_by(&self, other: &Setting) -> f64 {
        if self.stack != other.stack {
            return 0.0;
        }
        let apart = self.sizes.iter().zip(&other.sizes).zip(&REACH);
        let apart: f64 = apart.map(|((a, b), reach)| ((a - b) / reach).powi(2)).sum();
        let device = if self.device == other.device { 1.0 } else { ANY_DEVICE };
        let any = LAYOUT * LAYOUT * device;
        (-0.5 * apart).exp() * (any + LAYOUT_IN_VERSION * LAYOUT_IN_VERSION * self.time(other))
    }

    /// How near their versions are.
    fn time(&self, other: &Setting) -> f64 {
        (-(self.version - other.version).abs() / MONTHS).exp()
    }
}

/// `26.04` and `2026-04` in months; 0 if it is no version.
fn months(version: &str) -> f64 {
    let parts: Vec<f64> = version.split(['.', '-']).map_while(|p| p.parse().ok()).collect();
    match parts[..] {
        [year, month] => 12.0 * (year % 2000.0) + month,
        [year, month, ..] => 12.0 * (year % 2000.0) + month + 0.5,
        _ => 0.0,
    }
}

/// What `runs` say of a setting; one whose version is not known is of the newest.
pub fn said(runs: &[Run], of: &Setting) -> Said {
    let mut of = of.clone();
    if of.version == 0.0 {
        of.version = runs.iter().map(|r| r.setting.version).fold(0.0, f64::max);
    }
    let own = of.shares(&of) + of.lies_by(&of);
    let mut said = Said::default();
    for run in runs {
        let (what, place) = (of.shares(&run.setting), of.lies_by(&run.setting));
        said.what += what * run.pull;
        said.log += (what + place) * run.pull;
        said.alike = said.alike.max((what + place) / own);
    }
    said
}

impl From<Run> for String {
    fn from(run: Run) -> String {
        let s = &run.setting;
        let sizes: Vec<String> = s.sizes.iter().map(|x| format!("{}", rounded(*x))).collect();
        let kind = if s.experts { "experts" } else { "dense" };
        let compute = format!("{:?}", s.compute).to_lowercase();
        let sizes = sizes.join(" ");
        format!(
            "{}, {}, {}, {compute}, {kind}, {sizes}, {:.4}",
            s.device, s.stack, s.version, run.pull
        )
    }
}

/// To a hundredth: of a logarithm that is less than a percent.
fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0 + 0.0
}

impl TryFrom<String> for Run {
    type Error = String;

    fn try_from(text: String) -> Result<Run, String> {
        let wrong = || format!("`{text}` is no measured run");
        let cells: Vec<&str> = text.split(", ").collect();
        let [device, stack, version, compute, kind, sizes, pull] = cells[..] else {
            return Err(wrong());
        };
        let number = |t: &str| t.parse::<f64>().ok().filter(|x| x.is_finite()).ok_or_else(wrong);
        let sizes: Vec<f64> = sizes.split(' ').map(number).collect::<Result<_, _>>()?;
        let compute = [Compute::Bf16, Compute::Fp8, Compute::Fp4]
            .into_iter()
            .find(|c| format!("{c:?}").eq_ignore_ascii_case(compute))
            .ok_or_else(wrong)?;
        let setting = Setting {
            device: device.to_string(),
            stack: stack.to_string(),
            version: number(version)?,
            compute,
            experts: kind == "experts",
            sizes: sizes.try_into().map_err(|_| wrong())?,
        };
        Ok(Run { setting, pull: number(pull)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(device: &str, sizes: [f64; SIZES]) -> Setting {
        let stack = "megatron-bridge".to_string();
        let compute = Compute::Bf16;
        Setting { device: device.into(), stack, version: 316.0, compute, experts: false, sizes }
    }

    #[test]
    fn runs_far_away_say_nothing_and_the_same_run_says_its_own() {
        let here = setting("H100", [0.0; SIZES]);
        let own = here.shares(&here) + here.lies_by(&here);
        // By hand: 2 x 0.08^2 + 2 x 0.035^2, and 0.12^2 + 0.2^2.
        assert!((own - 0.06965).abs() < 1e-9, "{own}");
        let run = Run { setting: here.clone(), pull: 0.1 / own };
        let same = said(std::slice::from_ref(&run), &here);
        assert!((same.log - 0.1).abs() < 1e-9 && same.alike == 1.0, "{same:?}");
        // Another layout keeps what the stack has in common; another stack, device and number type nothing.
        let far = said(std::slice::from_ref(&run), &setting("H100", [9.0; SIZES]));
        assert!((far.log - far.what).abs() < 1e-9 && far.alike < 0.7, "{far:?}");
        let mut other = setting("B200", [9.0; SIZES]);
        (other.compute, other.experts, other.stack) = (Compute::Fp8, true, "verl".into());
        assert_eq!(said(&[run], &other), Said::default());
    }

    #[test]
    fn a_version_that_is_not_known_is_the_newest() {
        let at = |version: f64| Setting { version, ..setting("H100", [0.0; SIZES]) };
        let runs = [Run { setting: at(300.0), pull: 0.2 }, Run { setting: at(316.0), pull: -0.1 }];
        assert_eq!(said(&runs, &at(0.0)), said(&runs, &at(316.0)));
        assert_ne!(said(&runs, &at(0.0)), said(&runs, &at(300.0)));
        assert_eq!(months("26.04"), 316.0);
        assert_eq!(months("2026-04"), 316.0);
        assert_eq!(months("26.04.01"), 316.5);
        assert_eq!(months("fa2"), 0.0);
    }

    #[test]
    fn runs_are_lines_of_text() {
        let setting =
            setting("GB200", [1.58, 0.0, 2.0, 0.0, -1.0, 12.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0]);
        let run = Run { setting, pull: -0.125 };
        let text = String::from(run.clone());
        assert_eq!(
            text,
            "GB200, megatron-bridge, 316, bf16, dense, 1.58 0 2 0 -1 12 3 4 5 6 7 1, -0.1250"
        );
        assert_eq!(Run::try_from(text), Ok(run));
        for bad in [
            "",
            "a, b",
            "H100, x, 1, bf16, dense, 1 2 3, 0.1",
            "H100, x, 1, bf16, dense, 1 0 2 0 0 1 3 4 5 6 7 NaN, 1",
        ] {
            assert!(Run::try_from(bad.to_string()).is_err(), "{bad}");
        }
    }
}
