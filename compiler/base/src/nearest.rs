//! Did-you-mean: the known name closest to an unknown one.

/// The candidate closest to `name`, if it is close enough to be a slip.
///
/// Close means that at most a third of the letters differ (one for names of two or three, none but
/// their case for a single letter), where swapping two neighbors counts once. Ties go to a
/// candidate of the same length, then to the one that comes first.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let limit = match length {
        0 | 1 => 0,
        2..=4 => 1,
        _ => (length / 3).max(2),
    };
    let folded = name.to_lowercase();
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (strsim::osa_distance(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, found)| (*distance, found.chars().count().abs_diff(length)))
        .map(|(_, candidate)| candidate)
}

/// ``did you mean `x`?`` for the closest candidate.
pub fn did_you_mean<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(name, candidates).map(|found| format!("did you mean `{found}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["warmup", "cosine", "linear", "lr"];
        assert_eq!(nearest("wramup", known), Some("warmup"));
        assert_eq!(nearest("Cosine", known), Some("cosine"));
        assert_eq!(nearest("lt", known), Some("lr"));
        assert_eq!(nearest("momentum", known), None);
        assert_eq!(nearest("y", ["x", "Y"]), Some("Y"));
        assert_eq!(nearest("rows", ["pow"]), None);
        assert_eq!(nearest("prompst", ["prompt", "prompts"]), Some("prompts"));
        assert_eq!(did_you_mean("cosin", known).as_deref(), Some("did you mean `cosine`?"));
    }
}
