//! Meshes: ranks arranged along named axes.

use serde::{Deserialize, Serialize};

/// One axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    pub name: String,
    pub size: usize,
}

/// Ranks `0..ranks()` in row-major order over the axes: the last axis varies fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    pub axes: Vec<Axis>,
    /// The same ranks under other axes.
    #[serde(default)]
    pub views: Vec<View>,
}

/// Other axes of the ranks that the axes in `folds` tell apart; the last varies fastest. Experts are
/// split over `ep` and `etp` of such a view, and `edp` is what remains (Megatron-LM's parallel folding).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub folds: Vec<String>,
    pub axes: Vec<Axis>,
}

impl Mesh {
    /// A mesh of the given `(name, size)` axes.
    pub fn new(axes: &[(&str, usize)]) -> Mesh {
        let axes = axes.iter().map(|(n, s)| Axis { name: (*n).into(), size: *s }).collect();
        Mesh { axes, views: vec![] }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// The axes, then those of the views.
    fn every(&self) -> impl Iterator<Item = &Axis> {
        self.axes.iter().chain(self.views.iter().flat_map(|v| &v.axes))
    }

    /// Does the mesh, or a view of it, have this axis?
    pub fn has(&self, axis: &str) -> bool {
        self.every().any(|a| a.name == axis)
    }

    /// Size of an axis, maybe of a view; 1 for an axis the mesh lacks.
    pub fn size(&self, axis: &str) -> usize {
        self.every().find(|a| a.name == axis).map_or(1, |a| a.size)
    }

    /// The view that has this axis.
    pub fn view_of(&self, axis: &str) -> Option<&View> {
        let own = self.axes.iter().any(|a| a.name == axis);
        self.views.iter().find(|v| !own && v.axes.iter().any(|a| a.name == axis))
    }

    /// The view that experts are split over.
    pub fn expert_view(&self) -> Option<&View> {
        let of_experts = |a: &Axis| matches!(&*a.name, "edp" | "ep" | "etp");
        self.views.iter().find(|v| v.axes.iter().any(of_experts))
    }

    /// Coordinate of `rank` on `axis`; 0 for an axis the mesh lacks.
    pub fn coord(&self, rank: usize, axis: &str) -> usize {
        match self.view_of(axis) {
            Some(view) => along(&view.axes, self.coord_over(rank, &view.folds), axis),
            None => along(&self.axes, rank, axis),
        }
    }

    /// Coordinate of `rank` over several axes taken together, major first.
    pub fn coord_over(&self, rank: usize, axes: &[String]) -> usize {
        axes.iter().fold(0, |c, a| c * self.size(a) + self.coord(rank, a))
    }

    /// Product of the sizes of `axes`.
    pub fn size_over(&self, axes: &[String]) -> usize {
        axes.iter().map(|a| self.size(a)).product()
    }

    /// The ranks that differ from `rank` only along `axes`, in ascending order of coordinate.
    pub fn group(&self, rank: usize, axes: &[String]) -> Vec<usize> {
        let view = axes.iter().find_map(|a| self.view_of(a));
        let folded = |a: &&Axis| !view.is_some_and(|v| v.folds.contains(&a.name));
        let own = self.axes.iter().filter(folded);
        let all: Vec<&Axis> = own.chain(view.iter().flat_map(|v| &v.axes)).collect();
        let mut members: Vec<usize> = (0..self.ranks())
            .filter(|r| {
                all.iter().all(|a| {
                    axes.contains(&a.name) || self.coord(*r, &a.name) == self.coord(rank, &a.name)
                })
            })
            .collect();
        members.sort_by_key(|r| self.coord_over(*r, axes));
        members
    }
}

/// Coordinate on `axis` of the `index`-th place of a grid in row-major order.
fn along(axes: &[Axis], index: usize, axis: &str) -> usize {
    let mut rest = index;
    for a in axes.iter().rev() {
        let c = rest % a.size;
        rest /= a.size;
        if a.name == axis {
            return c;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folding that Megatron-LM documents: attention tp 2, cp 2, dp 2, experts etp 1, ep 4, edp 2.
    #[test]
    fn a_view_has_groups_of_its_own() {
        let mut mesh = Mesh::new(&[("dp", 2), ("cp", 2), ("tp", 2)]);
        let axes = [("edp", 2), ("ep", 4), ("etp", 1)];
        let axes = axes.map(|(n, size)| Axis { name: n.into(), size }).to_vec();
        let folds = ["dp", "cp", "tp"].map(String::from).to_vec();
        mesh.views.push(View { folds, axes });
        assert_eq!(mesh.ranks(), 8);
        assert_eq!((mesh.size("ep"), mesh.size("etp"), mesh.size("none")), (4, 1, 1));
        assert_eq!(mesh.group(5, &["ep".into()]), [4, 5, 6, 7]);
        assert_eq!(mesh.group(5, &["edp".into()]), [1, 5]);
        assert_eq!(mesh.group(5, &["tp".into()]), [4, 5]);
    }
}
