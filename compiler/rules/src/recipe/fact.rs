//! A value that knows its name and where it comes from.
//!
//! Rules compare values and print facts: `name = value` with the place that set it. A fact without
//! a place (a default, a model's config, a derived number) says in words where it comes from.

use std::fmt::Display;

use nrl_base::Span;

use crate::settings::{Origin, SetBy};

/// Where a value comes from.
#[derive(Clone, PartialEq, Debug)]
pub enum Whence {
    /// Written by the user, in a file or on the command line.
    Set(Origin),
    /// Not written: what the trainer takes then.
    Default,
    /// Read from the configuration of this model.
    Model(String),
    /// Computed; how, and from what.
    Derived(String, Vec<Cause>),
}

/// One line that explains a finding, with its place if it has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    pub text: String,
    pub span: Option<Span>,
}

/// A value with its name, as the user knows it, and its origin.
#[derive(Clone, PartialEq, Debug)]
pub struct Fact<T> {
    pub value: T,
    pub name: String,
    pub from: Whence,
}

/// What can be shown as the causes of a finding.
pub trait Shown {
    /// The causes, the place of the finding first.
    fn causes(&self) -> Vec<Cause>;
}

impl<T> Fact<T> {
    /// A value that somebody wrote.
    pub fn set(name: impl Into<String>, value: T, origin: Origin) -> Self {
        Fact { value, name: name.into(), from: Whence::Set(origin) }
    }

    /// A value that nobody wrote.
    pub fn default(name: impl Into<String>, value: T) -> Self {
        Fact { value, name: name.into(), from: Whence::Default }
    }

    /// A value from a model's configuration.
    pub fn model(name: impl Into<String>, value: T, model: &str) -> Self {
        Fact { value, name: name.into(), from: Whence::Model(model.to_string()) }
    }

    /// A computed value: how, and from what.
    pub fn derived(name: impl Into<String>, value: T, how: String, parts: &[&dyn Shown]) -> Self {
        let parts = parts.iter().flat_map(|part| part.causes()).collect();
        Fact { value, name: name.into(), from: Whence::Derived(how, parts) }
    }

    /// Another value of the same name and origin.
    pub fn map<U>(&self, change: impl FnOnce(&T) -> U) -> Fact<U> {
        Fact { value: change(&self.value), name: self.name.clone(), from: self.from.clone() }
    }
}

impl<T: Display> Shown for Fact<T> {
    fn causes(&self) -> Vec<Cause> {
        let Fact { value, name, from } = self;
        match from {
            Whence::Set(origin) => {
                let by = match origin.by {
                    SetBy::File => "",
                    SetBy::Parent => " (inherited)",
                    SetBy::CommandLine => " (command line)",
                };
                let text = format!("`{name}` = {value}{by}");
                let mut all = vec![Cause { text, span: Some(origin.key) }];
                if let Some(source) = origin.source {
                    let text = format!("its value {value} is written here");
                    all.push(Cause { text, span: Some(source) });
                }
                all
            }
            Whence::Default => {
                let text = format!("`{name}` = {value} by default; no file sets it");
                vec![Cause { text, span: None }]
            }
            Whence::Model(model) => {
                vec![Cause { text: format!("{model} has {name} = {value}"), span: None }]
            }
            Whence::Derived(how, parts) => {
                let mut all = vec![Cause { text: format!("{name} = {value}: {how}"), span: None }];
                all.extend(parts.iter().cloned());
                all
            }
        }
    }
}

impl<T: Display> Shown for Option<Fact<T>> {
    fn causes(&self) -> Vec<Cause> {
        self.as_ref().map(Shown::causes).unwrap_or_default()
    }
}

impl Shown for Vec<Cause> {
    fn causes(&self) -> Vec<Cause> {
        self.clone()
    }
}
