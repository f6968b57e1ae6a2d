//! Machines as a simulator sees them: a device, the nodes it stands in, and the links between.
//!
//! In: numbers of the recipe's cluster. Out: which links a group of ranks uses, and how many bytes per
//! second they carry. Ranks are numbered as in the mesh, whose last axis varies fastest, and fill
//! nodes in that order.

use nrl_ir::Mesh;
use serde::{Deserialize, Serialize};

/// A kind of device in a kind of node. Rates are per device, per second, and per direction for links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub name: String,
    /// Memory as the driver reports it, in bytes.
    pub memory: f64,
    /// Memory of the host, in bytes per node.
    pub host: f64,
    /// Dense products in bf16, FLOP/s.
    pub flops: f64,
    /// Products in 8 bits and in 4 bits, as multiples of `flops`; 1 where the device has none.
    pub fp8: f64,
    pub fp4: f64,
    /// To and from its own memory, bytes/s.
    pub bandwidth: f64,
    /// To the others of its node, bytes/s.
    pub link: f64,
    /// To other nodes, bytes/s.
    pub network: f64,
    /// Devices that share the fast links.
    pub per_node: usize,
}

/// The class of link that a group of ranks is held together by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// One rank alone.
    None,
    /// All members in one node.
    Node,
    /// Members in several nodes.
    Network,
}

impl Class {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::None => "none",
            Class::Node => "node",
            Class::Network => "network",
        }
    }
}

/// Ranks that take part in one collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    pub size: usize,
    /// Members that share a node.
    pub inside: usize,
    pub class: Class,
}

impl Group {
    /// A group of `size` ranks that are `stride` apart.
    pub fn new(size: usize, stride: usize, per_node: usize) -> Group {
        let inside = (per_node / stride.max(1)).clamp(1, size.max(1));
        let class = match size {
            0 | 1 => Class::None,
            _ if inside >= size => Class::Node,
            _ => Class::Network,
        };
        Group { size: size.max(1), inside, class }
    }
}

/// The ranks that differ along `axes` of `mesh`, on nodes of `per_node`.
pub fn group(mesh: &Mesh, axes: &[String], per_node: usize) -> Group {
    let view = axes.iter().find_map(|a| mesh.view_of(a));
    let folded = |a: &nrl_ir::Axis| view.is_some_and(|v| v.folds.contains(&a.name));
    // Axes that a view leaves are outside of it, but for those that vary faster than all it folds.
    let last = mesh.axes.iter().rposition(folded).unwrap_or(mesh.axes.len());
    let inner = mesh.axes.iter().skip(last + 1).map(|a| a.size);
    let mut stride: usize = if view.is_some() { inner.product() } else { 1 };
    let own = mesh.axes.iter().filter(|a| !folded(a));
    let grid: Vec<&nrl_ir::Axis> = own.chain(view.iter().flat_map(|v| &v.axes)).collect();
    let (mut size, mut inside, mut first) = (1, 1, None);
    for a in grid.into_iter().rev() {
        if axes.contains(&a.name) && a.size > 1 {
            first.get_or_insert(stride);
            let part = Group::new(a.size, stride, per_node);
            // Axes further out add members of this node only while all inner ones are in it.
            if inside == size {
                inside = size * part.inside;
            }
            size *= a.size;
        }
        stride *= a.size;
    }
    let class = match size {
        1 => Class::None,
        _ if inside >= size => Class::Node,
        _ => Class::Network,
    };
    Group { size, inside, class }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mesh: &[(&str, usize)], axes: &[&str]) -> Group {
        let axes: Vec<String> = axes.iter().map(|a| a.to_string()).collect();
        group(&Mesh::new(mesh), &axes, 8)
    }

    #[test]
    fn groups_are_inside_a_node_or_not() {
        let mesh = [("pp", 2), ("dp", 4), ("tp", 4)];
        assert_eq!(of(&mesh, &["tp"]), Group { size: 4, inside: 4, class: Class::Node });
        assert_eq!(of(&mesh, &["dp"]), Group { size: 4, inside: 2, class: Class::Network });
        assert_eq!(of(&mesh, &["dp", "tp"]), Group { size: 16, inside: 8, class: Class::Network });
        assert_eq!(of(&mesh, &["pp"]), Group { size: 2, inside: 1, class: Class::Network });
        assert_eq!(of(&[("dp", 1), ("tp", 8)], &["dp"]).class, Class::None);
    }
}
