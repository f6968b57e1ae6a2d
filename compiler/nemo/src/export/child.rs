//! The smallest file that, over a shipped recipe, gives wanted settings.
//!
//! What the shipped recipe derives is left to it where that gives the wanted value. A key that is
//! gone needs its whole section replaced; a section that is gone cannot be said at all, and then the
//! file stands alone.

use indexmap::IndexMap;
use nrl_rules::settings::{Node, Value};

use crate::interpolate;
use crate::layers::{Layers, differences, set};
use crate::merge;

/// The child, and whether it inherits.
pub(super) fn child(layers: &Layers<'_>, wanted: &Node) -> (Node, bool) {
    let alone = || (wanted.clone(), false);
    if layers.base.entries().next().is_none() {
        return alone();
    }
    let gone = layers.base.entries().any(|(name, _)| wanted.child(name).is_none());
    if gone {
        return alone();
    }
    let origin = wanted.origin;
    let node = |value| Node { value, origin };
    let mut child = node(Value::Map(IndexMap::new()));
    for (name, section) in wanted.entries() {
        let Some(below) = layers.base.child(name) else { continue };
        if let Value::Map(map) = &section.value
            && must_replace(below, section)
        {
            let mut whole = IndexMap::from([("_override_".into(), node(Value::Bool(true)))]);
            whole.extend(map.iter().map(|(k, v)| (k.clone(), v.clone())));
            set(&mut child, &[name.to_string()], Some(Value::Map(whole)));
        }
    }
    // First what the shipped recipe does not derive; all, if it then derives from what is gone.
    for derived in [false, true] {
        if let Some(child) = filled(layers, wanted, child.clone(), derived) {
            return (child, true);
        }
    }
    alone()
}

/// The child with all that merging does not give by itself.
fn filled(layers: &Layers<'_>, wanted: &Node, mut child: Node, derived: bool) -> Option<Node> {
    for round in 0..8 {
        let mut merged = layers.base.clone();
        merge::recipes(&mut merged, child.clone());
        let resolved = interpolate::resolve(&merged, layers.environment).0?;
        let mut missing = differences(&resolved, wanted);
        if missing.is_empty() {
            return Some(child);
        }
        if round == 0 && !derived {
            missing.retain(|line| !layers.derives(&line.path));
        }
        if missing.iter().any(|line| line.value.is_none()) {
            return None;
        }
        for line in missing {
            set(&mut child, &line.path, line.value);
        }
    }
    None
}

/// Whether a section cannot be reached by merging: keys are gone, or a list meets a mapping.
fn must_replace(below: &Node, wanted: &Node) -> bool {
    match (&below.value, &wanted.value) {
        (Value::Map(old), Value::Map(new)) => {
            old.keys().any(|key| !new.contains_key(key))
                || new.iter().any(|(k, v)| old.get(k).is_some_and(|old| must_replace(old, v)))
        }
        (Value::List(_), Value::Map(_)) | (Value::Map(_), Value::List(_)) => true,
        _ => false,
    }
}
