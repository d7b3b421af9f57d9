//! Numbers as people read and write them: thousands, bytes in GiB, sizes, durations.

use std::time::Duration;

/// `1234567.8` -> `1,234,568`.
pub fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 token`, `2,000 tokens`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = match noun {
        _ if number == 1 => "",
        _ if noun.ends_with("ch") || noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", thousands(number as f64))
}

/// Numbers that a list shows.
const SHOWN: usize = 10;

/// `4, 5, 9`, and after ten numbers ` and 3 more`.
pub fn first_few(numbers: &[usize]) -> String {
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(usize::to_string).collect();
    match numbers.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Bytes in GiB.
pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// `42s`, `3m05s`, `2h07m`.
pub fn duration(duration: Duration) -> String {
    let secs = duration.as_secs_f64().round() as u64;
    match secs {
        0..60 => format!("{secs}s"),
        60..3600 => format!("{}m{:02}s", secs / 60, secs % 60),
        _ => format!("{}h{:02}m", secs / 3600, secs % 3600 / 60),
    }
}

/// The units of sizes, with their bytes. Capitals make no difference: `kB` and `KB` are one unit.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Reads a number and one of the units of its table, such as `24GiB`, `512 MiB` or `80GB`, or a number of bytes.
///
/// # Errors
/// A sentence that says what is expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wanted = || {
        let units = UNITS.map(|(unit, _)| unit).join(", ");
        format!("{text:?} is not a size: write it like 24GiB, 80GB or as a number of bytes; the units are {units}")
    };
    let size = text.trim();
    let number_end = size.len() - size.chars().rev().take_while(char::is_ascii_alphabetic).count();
    let (digits, unit) = size.split_at(number_end);
    let unit = match UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, bytes)) => bytes,
        None if unit.is_empty() => 1,
        None => return Err(wanted()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| wanted())?;
    let bytes = number * unit as f64;
    if (1.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wanted()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        for (number, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.8, "1,234,568")] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!((counted(1, "token"), counted(2000, "token")), ("1 token".into(), "2,000 tokens".into()));
        assert_eq!(first_few(&[4, 5]), "4, 5");
        assert_eq!(first_few(&(1..=12).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more");
        for (secs, text) in [(0.2, "0s"), (59.4, "59s"), (185.0, "3m05s"), (7640.0, "2h07m")] {
            assert_eq!(duration(Duration::from_secs_f64(secs)), text);
        }
    }

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("1.5 GiB", 3 << 29),
            ("80GB", 80_000_000_000),
            ("512 kB", 512_000),
            ("512KB", 512_000),
            ("64KiB", 65_536),
            ("16gb", 16_000_000_000),
            ("2 TiB", 2 << 40),
            ("1.5TB", 1_500_000_000_000),
            ("7 b", 7),
            ("1024", 1024),
            ("1e6", 1_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "-1GiB", "1e99", "NaN", "inf GiB", "24 G", "3 GBps", "0", "é"] {
            assert!(parse_size(wrong).expect_err(wrong).contains("24GiB"), "{wrong}");
        }
    }
}
