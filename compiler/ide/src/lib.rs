//! What an editor asks: hover, completion, definitions, hints, renames.
