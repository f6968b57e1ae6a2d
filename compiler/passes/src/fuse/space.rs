//! Iteration spaces: which dims are rows, which are lanes, and how an operand is read in them.

use nrl_ir::kernel::{Access, RowIndex};
use nrl_ir::{DimId, Graph, ReduceOp};

/// Allowed numbers of lane dims: bit `k` for the last `k` dims of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lanes(u32);

impl Lanes {
    /// Any number of trailing static dims.
    pub fn of(g: &Graph, space: &[DimId]) -> Lanes {
        let fixed = space.iter().rev().take_while(|d| !g.dims.is_ragged(**d)).count();
        Lanes((1 << (fixed + 1)) - 1)
    }

    pub fn only(k: usize) -> Lanes {
        Lanes(1 << k)
    }

    pub fn and(&self, other: &Lanes) -> Lanes {
        Lanes(self.0 & other.0)
    }

    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    pub fn allows(&self, k: usize) -> bool {
        self.0 >> k & 1 == 1
    }

    /// The widest choice.
    pub fn widest(&self) -> usize {
        (u32::BITS - 1 - self.0.leading_zeros()) as usize
    }

    fn where_true(n: usize, f: impl Fn(usize) -> bool) -> Lanes {
        Lanes((0..=n).filter(|k| f(*k)).map(|k| 1 << k).sum())
    }
}

/// A reduction inside a kernel: first over lanes, then over rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    /// Combines over the lanes; which are then this many trailing dims.
    pub over_lanes: Option<usize>,
    pub rows: Rows,
}

/// What is done over the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Keep,
    /// Sums all of them; `lanes` dims are left.
    All {
        lanes: usize,
    },
    /// Sums those of each segment; the rows are `of` alone.
    Segments {
        of: DimId,
        owner: DimId,
        lanes: usize,
    },
}

impl Fold {
    /// Does the result exist only after the last row?
    pub fn over_rows(&self) -> bool {
        self.rows != Rows::Keep
    }

    /// The lane choices it leaves in its own space of `n` dims.
    pub fn lanes(&self, n: usize) -> Lanes {
        match (&self.over_lanes, &self.rows) {
            (Some(k), _) => Lanes::only(*k),
            (None, Rows::All { lanes } | Rows::Segments { lanes, .. }) => Lanes::only(*lanes),
            (None, Rows::Keep) => Lanes::where_true(n, |_| true),
        }
    }
}

/// How to reduce a value over `dims` by `over` in one kernel, if that can be said.
pub(super) fn fold(g: &Graph, dims: &[DimId], op: ReduceOp, over: &[DimId]) -> Option<Fold> {
    let fixed = dims.iter().rev().take_while(|d| !g.dims.is_ragged(**d)).count();
    let k = dims.iter().rev().take(fixed).take_while(|d| over.contains(d)).count();
    let (rows, lanes) = dims.split_at(dims.len() - k);
    let left: Vec<DimId> = over.iter().filter(|d| !lanes.contains(d)).copied().collect();
    if left.is_empty() {
        return Some(Fold { over_lanes: Some(k), rows: Rows::Keep });
    }
    if op != ReduceOp::Sum {
        return None;
    }
    let over_lanes = (k > 0).then_some(k);
    // A segment sum: `[tok]` to `[seq]`.
    if let [of] = rows {
        let owner = g.dims.owners(*of).find(|o| !left.contains(o));
        if let Some(owner) = owner.filter(|o| o != of) {
            let levels = g.dims.owners(*of).take_while(|o| *o != owner).count();
            let fits = left.len() == levels && left.contains(of);
            return fits
                .then_some(Fold { over_lanes, rows: Rows::Segments { of: *of, owner, lanes: k } });
        }
    }
    // A sum over all rows; a suffix that is kept is the lanes.
    let kept = if k > 0 {
        0
    } else {
        dims.iter().rev().take(fixed).take_while(|d| !over.contains(d)).count()
    };
    let rows = &dims[..dims.len() - k - kept];
    let mut want: Vec<DimId> = vec![];
    for d in rows.iter().flat_map(|d| g.dims.owners(*d)) {
        if !want.contains(&d) {
            want.push(d);
        }
    }
    let all = want.len() == left.len() && want.iter().all(|d| left.contains(d));
    all.then_some(Fold { over_lanes, rows: Rows::All { lanes: k + kept } })
}

/// Lane choices with which an operand over `dims` can be read in `space`.
pub(super) fn readable(g: &Graph, dims: &[DimId], space: &[DimId]) -> Lanes {
    Lanes::where_true(space.len(), |k| access(g, dims, space, k).is_some())
}

/// Lane choices with which a value over `dims` made in the group is one of its instructions.
pub(super) fn inside(dims: &[DimId], space: &[DimId]) -> Lanes {
    if dims == space {
        return Lanes::where_true(space.len(), |_| true);
    }
    match space.strip_prefix(dims) {
        Some(rest) => Lanes::only(rest.len()),
        None => Lanes(0),
    }
}

/// How an operand over `dims` is read in `space` with `k` lane dims.
pub(super) fn access(g: &Graph, dims: &[DimId], space: &[DimId], k: usize) -> Option<Access> {
    let (rows, lanes) = space.split_at(space.len() - k);
    let (part, with_lanes) = match dims.strip_suffix(lanes) {
        Some(part) if k > 0 => (part, true),
        _ => (dims, false),
    };
    if part.is_empty() {
        return Some(Access { row: RowIndex::None, lanes: with_lanes });
    }
    let sizes = |dims: &[DimId]| dims.iter().map(|d| g.dims.size(*d)).product::<Option<usize>>();
    if let Some(i) =
        (0..=rows.len().checked_sub(part.len())?).find(|i| rows[*i..*i + part.len()] == *part)
    {
        let div = sizes(&rows[i + part.len()..])?;
        let modulo = if i == 0 { 0 } else { sizes(part)? };
        return Some(Access { row: RowIndex::Row { div, modulo }, lanes: with_lanes });
    }
    let ([owner], [of, rest @ ..]) = (part, rows) else { return None };
    let owned = g.dims.owners(*of).any(|o| o == *owner);
    let div = sizes(rest)?;
    owned.then_some(Access {
        row: RowIndex::Segment { div, of: *of, owner: *owner },
        lanes: with_lanes,
    })
}

/// The space that holds both, and the lane choices left: the same dims, or one is the rows of the
/// other.
pub(super) fn unite(
    g: &Graph,
    a: &[DimId],
    la: &Lanes,
    b: &[DimId],
    lb: &Lanes,
) -> Option<(Vec<DimId>, Lanes)> {
    if a == b {
        return Some((a.to_vec(), la.and(lb)));
    }
    let (short, ls, long, ll) = if a.len() < b.len() { (a, la, b, lb) } else { (b, lb, a, la) };
    let rest = long.strip_prefix(short)?;
    let narrow = ls.allows(0) && !short.is_empty() && rest.iter().all(|d| !g.dims.is_ragged(*d));
    let lanes = ll.and(&Lanes::only(rest.len()));
    narrow.then(|| (long.to_vec(), lanes))
}
