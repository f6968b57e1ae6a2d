//! Names of a module: where each is declared, where it may be used, and what every use means.
//!
//! In: a [`World`] and one of its modules. Out: declarations with the range in which they can be named,
//! and uses with their targets. A later `let` of a name hides the earlier one. What cannot be decided
//! from the text alone, such as a field of a value, has no target.

mod walk;

use std::ops::Range;

use nrl_base::Span;

use crate::world::World;

/// What a declaration declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Function,
    Model,
    Record,
    Enum,
    Type,
    Unit,
    Plan,
    Recipe,
    Mesh,
    Axis,
    Phase,
    Constant,
    /// A parameter of a function, model, plan or recipe.
    Parameter,
    Local,
    Dim,
    /// A weight of a model.
    Weight,
    Layers,
    Field,
    Variant,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Function => "function",
            Kind::Model => "model",
            Kind::Record => "record",
            Kind::Enum => "enum",
            Kind::Type => "type",
            Kind::Unit => "unit",
            Kind::Plan => "plan",
            Kind::Recipe => "recipe",
            Kind::Mesh => "mesh",
            Kind::Axis => "axis",
            Kind::Phase => "phase",
            Kind::Constant => "constant",
            Kind::Parameter => "parameter",
            Kind::Local => "name",
            Kind::Dim => "dim",
            Kind::Weight => "weight",
            Kind::Layers => "layers",
            Kind::Field => "field",
            Kind::Variant => "variant",
        }
    }
}

/// One declaration.
#[derive(Clone, PartialEq, Debug)]
pub struct Def {
    pub name: String,
    /// Of the name.
    pub span: Span,
    pub kind: Kind,
    /// Offsets at which the name alone means this, unless it is hidden.
    pub visible: Range<usize>,
    /// The value that it is bound to.
    pub value: Option<Span>,
    /// The whole statement or item.
    pub whole: Span,
    pub doc: Option<String>,
    /// What it is known to be by its type.
    pub(crate) thing: Thing,
}

/// What a name is known to be, from the text alone.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum Thing {
    #[default]
    Unknown,
    Module(usize),
    /// An item itself.
    Item(usize, usize),
    /// A value of the type that an item declares.
    Of(usize, usize),
    /// Layers of a model: their weights.
    Layers(Vec<nrl_syntax::ast::Name>),
}

/// What a use means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The declaration whose name stands there.
    Def(Span),
    Module(usize),
    /// A function of the compiler itself.
    Builtin(String),
}

/// One use of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    pub span: Span,
    pub target: Target,
}

/// All names of one module.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub defs: Vec<Def>,
    pub uses: Vec<Use>,
}

impl Index {
    /// Walks a module.
    pub fn of(world: &World, module: usize) -> Index {
        walk::walk(world, module)
    }

    /// The use or declaration at an offset: its place and what it means.
    pub fn at(&self, offset: usize) -> Option<(Span, Target)> {
        let used = self.uses.iter().filter(|u| u.span.touches(offset));
        let found = used.min_by_key(|u| u.span.end - u.span.start);
        let declared = || self.defs.iter().find(|d| d.span.touches(offset));
        found
            .map(|u| (u.span, u.target.clone()))
            .or_else(|| declared().map(|d| (d.span, Target::Def(d.span))))
    }

    /// The declaration whose name stands at a span.
    pub fn def(&self, span: Span) -> Option<&Def> {
        self.defs.iter().find(|d| d.span == span)
    }

    /// Declarations that can be named at an offset, hidden ones left out, innermost first.
    pub fn visible(&self, offset: usize) -> Vec<&Def> {
        let mut seen: Vec<&str> = vec![];
        let mut out = vec![];
        let near = |d: &&Def| (std::cmp::Reverse(d.visible.start), d.visible.end);
        let mut all: Vec<&Def> = self.defs.iter().filter(|d| d.visible.contains(&offset)).collect();
        all.sort_by_key(near);
        for def in all {
            if !seen.contains(&def.name.as_str()) {
                seen.push(&def.name);
                out.push(def);
            }
        }
        out
    }
}
