//! FP8: numbers of eight bits for the operands of matrix products (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
//!
//! A matrix is scaled by a power of two, so that its largest magnitude comes into the upper half of the format's range, and
//! rounded to the nearest number, ties to even. The scale is computed from the matrix itself whenever it is rounded ("current
//! scaling", one per tensor), so that nothing has to be kept from step to step. Powers of two add no rounding of their own.
//!
//! A matrix with a number that is not finite has NaN as its scale: the products are NaN, and a trainer sees it.

/// A format of eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fp8 {
    /// Four bits of exponent, three of mantissa, up to 448: weights and activations.
    E4M3,
    /// Five bits of exponent, two of mantissa, up to 57,344: gradients.
    E5M2,
}

impl Fp8 {
    /// Returns the exponent of the largest number, which is 1.75 times a power of two in both formats.
    pub(crate) const fn largest_exponent(self) -> i32 {
        match self {
            Self::E4M3 => 8,
            Self::E5M2 => 15,
        }
    }

    /// Returns the exponent of the smallest number with a full mantissa.
    const fn smallest_exponent(self) -> i32 {
        match self {
            Self::E4M3 => -6,
            Self::E5M2 => -14,
        }
    }

    const fn mantissa_bits(self) -> i32 {
        match self {
            Self::E4M3 => 3,
            Self::E5M2 => 2,
        }
    }

    /// Returns the exponent of the power of two that brings numbers of at most `largest` into the format's range; `None` if
    /// `largest` is not finite.
    pub(crate) fn scale_exponent(self, largest: f32) -> Option<i32> {
        if !largest.is_finite() {
            return None;
        }
        let bits = largest.to_bits();
        let (exponent, mantissa) = ((bits >> 23) as i32 - 127, bits & 0x7f_ffff);
        let is_above = i32::from(mantissa > 0x60_0000);
        Some(if largest == 0.0 { 0 } else { (self.largest_exponent() - exponent - is_above).min(MAX_SCALE) })
    }

    /// Returns the number of the format that is nearest to `x`, which is in its range.
    fn nearest(self, x: f32) -> f32 {
        let exponent = ((x.to_bits() >> 23) & 0xff) as i32 - 127;
        let step = power_of_two(exponent.max(self.smallest_exponent()) - self.mantissa_bits());
        (x / step).round_ties_even() * step
    }

    /// Rounds `values` as a GPU does, and takes the scale out again.
    pub(crate) fn rounded(self, values: &[f32]) -> Vec<f32> {
        // Bits of magnitudes are ordered as magnitudes, and NaN comes last.
        let largest = values.iter().map(|x| x.abs().to_bits()).max().map_or(0.0, f32::from_bits);
        let Some(exponent) = self.scale_exponent(largest) else { return vec![f32::NAN; values.len()] };
        let (up, down) = (power_of_two(exponent), power_of_two(-exponent));
        values.iter().map(|x| self.nearest(x * up) * down).collect()
    }
}

/// Whether a product of operands in these formats is a gradient, whose sums are added up in f32.
#[cfg(feature = "cuda")]
pub(crate) const fn adds_up(formats: [Fp8; 2]) -> bool {
    matches!(formats, [Fp8::E5M2, _] | [_, Fp8::E5M2])
}

/// The largest exponent of a scale, whose inverse is still a normal number.
pub(crate) const MAX_SCALE: i32 = 126;

/// Returns `2^exponent`, for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_a_format_stay_and_others_go_to_the_nearest() {
        for format in [Fp8::E4M3, Fp8::E5M2] {
            let (bits, smallest) = (format.mantissa_bits(), format.smallest_exponent());
            let mut numbers = vec![0.0f32];
            for exponent in smallest..=format.largest_exponent() {
                let normal = 1 << bits;
                numbers.extend((normal..2 * normal).map(|m| m as f32 * power_of_two(exponent - bits)));
            }
            numbers.extend((1..1 << bits).map(|m| m as f32 * power_of_two(smallest - bits)));
            numbers.retain(|x| *x <= 1.75 * power_of_two(format.largest_exponent()));
            numbers.sort_by(f32::total_cmp);
            for pair in numbers.windows(2) {
                let (low, high) = (pair[0], pair[1]);
                assert_eq!([low, -low].map(|x| format.nearest(x)), [low, -low], "{format:?}");
                assert_eq!(format.nearest(low + 0.4 * (high - low)), low, "{format:?} above {low}");
                assert_eq!(format.nearest(low + 0.6 * (high - low)), high, "{format:?} below {high}");
            }
        }
    }

    #[test]
    fn a_scale_uses_the_upper_half_of_the_range() {
        for format in [Fp8::E4M3, Fp8::E5M2] {
            let top = 1.75 * power_of_two(format.largest_exponent());
            for largest in [1e-30f32, 0.3, 1.0, 1.75, 1.76, 448.0, 3e38] {
                let scaled = largest * power_of_two(format.scale_exponent(largest).expect("finite"));
                assert!(scaled <= top && (scaled > top / 2.0 || largest < 1e-25), "{format:?}, {largest}: {scaled}");
            }
            assert_eq!(format.scale_exponent(0.0), Some(0));
            assert_eq!(format.scale_exponent(f32::INFINITY), None);
        }
    }

    #[test]
    fn a_matrix_keeps_its_largest_numbers_and_loses_small_ones() {
        assert_eq!(Fp8::E4M3.rounded(&[1.0, -0.5, 1e-9, 0.3]), [1.0, -0.5, 0.0, 0.3125]);
        assert!(Fp8::E5M2.rounded(&[1.0, f32::NAN]).iter().all(|x| x.is_nan()));
        assert!(Fp8::E5M2.rounded(&[f32::NEG_INFINITY, 1.0]).iter().all(|x| x.is_nan()));
        assert_eq!(Fp8::E4M3.rounded(&[]), [0.0f32; 0]);
    }
}
