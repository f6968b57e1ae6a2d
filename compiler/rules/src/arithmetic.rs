//! Valid numbers near an invalid one, for help lines.

/// All divisors of `n` up to `limit`, ascending.
pub fn divisors(n: i64, limit: i64) -> Vec<i64> {
    let all = nrl_base::divisors(usize::try_from(n).unwrap_or(0)).into_iter();
    all.map(|d| d as i64).take_while(|d| *d <= limit.min(65_536)).collect()
}

/// The multiples of `unit` just below and above `value`, without zero.
pub fn multiples(value: i64, unit: i64) -> Vec<i64> {
    if unit < 1 {
        return vec![];
    }
    let below = value.div_euclid(unit) * unit;
    [below, below.saturating_add(unit)].into_iter().filter(|m| *m > 0).collect()
}

/// `1, 2 or 4`.
pub fn one_of(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(i64::to_string).collect();
    match texts.as_slice() {
        [] => "nothing".to_string(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The least common multiple; saturates.
pub fn lcm(a: i64, b: i64) -> i64 {
    if a < 1 || b < 1 {
        return a.max(b).max(1);
    }
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_of_a_number() {
        assert_eq!(divisors(28, 8), [1, 2, 4, 7]);
        assert_eq!(multiples(500, 12), [492, 504]);
        assert_eq!(multiples(5, 12), [12]);
        assert_eq!(lcm(4, 6), 12);
        assert_eq!(one_of(&[1, 2, 4]), "1, 2 or 4");
    }
}
