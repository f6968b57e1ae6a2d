//! Did-you-mean: the known name closest to an unknown one.

/// The candidate closest to `name`, if it is close enough to be a slip.
///
/// Close means at most a third of the letters differ (two at least for names of four or more),
/// where swapping two neighbors counts once. Ties go to the candidate that comes first.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let limit = if length < 4 { 1 } else { (length / 3).max(2) };
    let folded = name.to_lowercase();
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (strsim::osa_distance(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
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
        assert_eq!(did_you_mean("cosin", known).as_deref(), Some("did you mean `cosine`?"));
    }
}
