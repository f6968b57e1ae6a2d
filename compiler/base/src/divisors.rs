//! Whole numbers that divide another, for help that lists what would be legal.

/// The divisors of `n` in rising order; none of 0. Takes steps of the root of `n`, since `n` is what somebody typed.
pub fn divisors(n: usize) -> Vec<usize> {
    let small: Vec<usize> =
        (1..).take_while(|d| *d <= n / d).filter(|d| n.is_multiple_of(*d)).collect();
    let large: Vec<usize> = small.iter().rev().map(|d| n / d).skip_while(|d| *d == n / d).collect();
    [small, large].concat()
}

/// `1, 2, 4`; of more than 24 the first and the last.
pub fn listed(all: &[usize]) -> String {
    let words = |part: &[usize]| part.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match all {
        [first @ .., last] if all.len() > 24 => format!("{}, .., {last}", words(&first[..20])),
        _ => words(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_and_in_order() {
        for n in 0..200 {
            let slow: Vec<usize> = (1..=n).filter(|d| n % d == 0).collect();
            assert_eq!(divisors(n), slow, "{n}");
        }
        assert_eq!(divisors(1_000_000_000_000).len(), 169);
        assert_eq!(divisors((1 << 31) - 1), [1, (1 << 31) - 1]);
        assert_eq!(listed(&[1, 2, 4]), "1, 2, 4");
        assert!(listed(&divisors(720_720)).ends_with("20, 21, 22, .., 720720"));
    }
}
