//! Seconds and bytes of many layouts: each cut is compiled once, everything else is put together around it.
//!
//! In: layouts of one cut. Out: for each the seconds of what runs on the mesh that trains and the bytes of its
//! fullest rank there, as a forecast of the edited recipe would have them; or why the compiler refuses the cut.

use nrl_driver::{Compiled, Passes, Profiles, Regroup, Works};
use nrl_sim::tables::Tables;

use super::layout::{Again, Family, Layout};
use super::recipe::{Recipe, codes};
use super::sites::Sites;
use super::space::Space;

/// What is looked at, and how.
pub struct Screen<'a> {
    pub recipe: &'a Recipe,
    pub sites: &'a Sites,
    pub space: &'a Space<'a>,
    pub tables: &'a Tables,
    /// Nothing goes to hosts where a layout fits without it.
    pub first_that_fits: bool,
}

/// A layout with what runs on the mesh that trains.
#[derive(Clone, Debug)]
pub struct Seen {
    pub layout: Layout,
    /// Seconds per step.
    pub seconds: f64,
    /// Bytes of the fullest rank in updates there.
    pub bytes: f64,
}

impl Screen<'_> {
    /// How many ways each layout is looked at.
    pub fn ways(&self) -> usize {
        if self.first_that_fits { 1 } else { self.space.offloads().len() }
    }

    /// Compiles the recipe with another layout.
    pub fn compiled(&self, l: &Layout) -> Result<Compiled, String> {
        let text = self.sites.tried(l, self.space.split(l).as_deref());
        self.recipe.compile(text).map_err(|f| {
            codes(&f.found).into_iter().next().unwrap_or_else(|| "the compiler refuses it".into())
        })
    }

    /// Seconds and bytes of the layouts of one cut that take at most `most` bytes.
    pub fn cut(&self, layouts: &[Layout], most: f64) -> Result<Vec<Seen>, String> {
        let Some(first) = layouts.first() else { return Ok(vec![]) };
        let mut c = self.compiled(first)?;
        let assume = &self.recipe.assume;
        let Some(found) = nrl_driver::rates(&c, assume, self.tables) else { return Ok(vec![]) };
        let (mut works, mut profiles) = (Works::default(), Profiles::default());
        let mesh = self.sites.train;
        let passes = Passes::on(&c, assume, &found, mesh);
        let mut out = Vec::with_capacity(layouts.len());
        for l in layouts {
            for offload in self.space.offloads() {
                let l = Layout { offload, ..l.clone() };
                self.regroup(&mut c, &l);
                let bytes = nrl_driver::update_bytes(&c, mesh, &mut profiles);
                if bytes > most {
                    continue;
                }
                let seconds = passes.seconds(&c, assume, &found, &mut works);
                out.push(Seen { layout: l, seconds, bytes });
                if self.first_that_fits {
                    break;
                }
            }
        }
        Ok(out)
    }

    /// Gives a compiled cut the sizes of a layout.
    pub fn regroup(&self, c: &mut Compiled, l: &Layout) {
        let axes = [("pp", l.pp), ("dp", l.dp), ("fsdp", l.fsdp), ("cp", l.cp), ("tp", l.tp)];
        let split = self.space.split(l);
        c.regroup(&Regroup {
            mesh: self.sites.train,
            axes: &axes,
            chunks: l.chunks,
            split: split.as_deref(),
            tokens: l.microbatch,
            selective: l.recompute == Again::Selective,
            offload: (l.family != Family::Own).then_some(l.offload),
        });
    }
}
