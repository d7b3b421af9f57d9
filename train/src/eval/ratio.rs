//! Fractions of counts.

/// A fraction that is 0 if there is nothing.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The harmonic mean of precision and recall.
pub(super) fn f1(right: u64, predicted: u64, wanted: u64) -> f64 {
    ratio(2 * right, predicted + wanted)
}
