//! Numbers as people read them: thousands, bytes in GiB, durations.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        for (number, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.8, "1,234,568")] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!((counted(1, "token"), counted(2000, "token")), ("1 token".into(), "2,000 tokens".into()));
        for (secs, text) in [(0.2, "0s"), (59.4, "59s"), (185.0, "3m05s"), (7640.0, "2h07m")] {
            assert_eq!(duration(Duration::from_secs_f64(secs)), text);
        }
    }
}
