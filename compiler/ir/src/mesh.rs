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
}

impl Mesh {
    /// A mesh of the given `(name, size)` axes.
    pub fn new(axes: &[(&str, usize)]) -> Mesh {
        Mesh { axes: axes.iter().map(|(n, s)| Axis { name: (*n).into(), size: *s }).collect() }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// Size of an axis; 1 for an axis the mesh lacks.
    pub fn size(&self, axis: &str) -> usize {
        self.axes.iter().find(|a| a.name == axis).map_or(1, |a| a.size)
    }

    /// Coordinate of `rank` on `axis`; 0 for an axis the mesh lacks.
    pub fn coord(&self, rank: usize, axis: &str) -> usize {
        let mut rest = rank;
        for a in self.axes.iter().rev() {
            let c = rest % a.size;
            rest /= a.size;
            if a.name == axis {
                return c;
            }
        }
        0
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
        let mut members: Vec<usize> = (0..self.ranks())
            .filter(|r| {
                self.axes.iter().all(|a| {
                    axes.contains(&a.name) || self.coord(*r, &a.name) == self.coord(rank, &a.name)
                })
            })
            .collect();
        members.sort_by_key(|r| self.coord_over(*r, axes));
        members
    }
}
