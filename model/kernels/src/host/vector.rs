//! Arithmetic over slices of numbers that the compiler turns into vector instructions.
//!
//! Sums have 16 partial sums in a fixed order, and no operation contracts a product and a sum: every machine computes the
//! same bits, whatever the width of its vectors.

/// Partial sums, and partial maxima.
const LANES: usize = 16;

/// Defines functions that run compiled for the widest vectors of this machine.
macro_rules! vectorized_fn {
    ($($(#[$about:meta])* $visibility:vis fn $name:ident($($x:ident: $X:ty),* $(,)?) $(-> $Y:ty)? $body:block)+) => {$(
        $(#[$about])*
        $visibility fn $name($($x: $X),*) $(-> $Y)? {
            #[inline(always)]
            fn portable($($x: $X),*) $(-> $Y)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
                fn wide($($x: $X),*) $(-> $Y)? {
                    portable($($x),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn medium($($x: $X),*) $(-> $Y)? {
                    portable($($x),*)
                }

                #[expect(unsafe_code, reason = "a function for other machines than the compiler was told of")]
                // SAFETY: this machine has what `Width` says.
                match $crate::host::vector::Width::of_this_machine() {
                    $crate::host::vector::Width::Avx512 => return unsafe { wide($($x),*) },
                    $crate::host::vector::Width::Avx2 => return unsafe { medium($($x),*) },
                    $crate::host::vector::Width::Baseline => {}
                }
            }
            portable($($x),*)
        }
    )+};
}
pub(crate) use vectorized_fn;

/// The vectors that a machine has.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Width {
    Avx512,
    Avx2,
    Baseline,
}

#[cfg(target_arch = "x86_64")]
impl Width {
    #[inline]
    pub(crate) fn of_this_machine() -> Self {
        use std::arch::is_x86_feature_detected as has;
        if !(has!("avx2") && has!("fma")) {
            return Self::Baseline;
        }
        let is_wide = has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        if is_wide { Self::Avx512 } else { Self::Avx2 }
    }
}

/// Runs `work` compiled for the widest vectors of this machine. Only what is inlined into `work` profits, which a compiler does with
/// short loops: what takes an exponential is a function of [`vectorized_fn!`].
pub(crate) fn vectorized<T>(work: impl FnOnce() -> T) -> T {
    macerator::AutoArch::new().dispatch(work)
}

/// Returns `e^x`, to 2 units of the last place. Arguments below -87 give about 1e-38, above 88 about 1e38; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2, so that e^x = 2^n e^r (Cody and Waite 1980). ln 2 is split: n times its first
    // part is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the last bits.
    const ROUND: f32 = 12_582_912.0;

    // Comparisons keep NaN, `clamp` and `max` of a constant would not vectorize as well.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];

    // The Taylor series up to r^7 / 7!: the rest is below 6e-9.
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    series * f32::from_bits(exponent << 23)
}

/// Returns `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the error function, to 4e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    // A rational function, fitted to the relative error by weighted least squares at Chebyshev nodes. From 3.92 on, the result is
    // 1 within rounding.
    const P: [f32; 7] =
        [1.988_094_8e-8, -1.955_475_2e-6, 1.418_445_2e-4, 3.705_796_6e-3, 5.058_973_7e-2, 2.000_549_3e-1, 1.128_379_1];
    const Q: [f32; 5] = [9.566_941_9e-4, 1.436_317_6e-2, 1.150_513_7e-1, 5.106_257_8e-1, 1.0];
    const END: f32 = 3.92;

    // Comparisons keep NaN.
    let x = if x < -END { -END } else { x };
    let x = if x > END { END } else { x };
    let square = x * x;
    let [mut p, mut q] = [P[0], Q[0]];
    P[1..].iter().for_each(|c| p = p * square + c);
    Q[1..].iter().for_each(|c| q = q * square + c);

    let y = x * p / q;
    let y = if y < -1.0 { -1.0 } else { y };
    if y > 1.0 { 1.0 } else { y }
}

/// Returns the largest number; NaN counts as none.
#[inline(always)]
pub(crate) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    rest.iter().chain(&lanes).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Returns the sum.
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().chain(rest).sum()
}

vectorized_fn! {
    /// Returns `ln(sum(e^x))`.
    pub(crate) fn log_sum_exp(values: &[f32]) -> f32 {
        let max = max(values);
        let mut lanes = [0.0; LANES];
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += exp(x - max));
        }
        max + (lanes.iter().sum::<f32>() + rest.iter().map(|x| exp(x - max)).sum::<f32>()).ln()
    }

    /// Replaces each number by `e^(x - max)`. Returns the sum.
    pub(crate) fn exponentials(values: &mut [f32], max: f32) -> f32 {
        values.iter_mut().for_each(|x| *x = exp(*x - max));
        sum(values)
    }
}

/// Returns the sum of the squared distances from `center`.
#[inline(always)]
pub(crate) fn sum_of_squares(values: &[f32], center: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += (x - center) * (x - center));
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|x| (x - center) * (x - center)).sum::<f32>()
}

/// Returns the sum of the products.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_two_units_of_the_last_place() {
        let arguments = (-8700..=8800).map(|i| i as f32 / 100.0);
        let found = vectorized(|| arguments.clone().map(exp).collect::<Vec<_>>());
        for (x, found) in arguments.zip(found) {
            let exact = f64::from(x).exp();
            let error = (f64::from(found) - exact).abs() / exact;
            assert!(error < 2.5e-7, "e^{x}: {found} instead of {exact}, relative error {error:.1e}");
            assert_eq!(found, exp(x), "the same bits whatever the vectors");
        }
        assert!(exp(-1e30) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!((exp(0.0), sigmoid(0.0)), (1.0, 0.5));
    }

    #[test]
    fn the_error_function_is_right_to_4e_7() {
        // By its series, which converges fast enough for these arguments, in f64.
        let exact = |x: f64| {
            let term = |(sum, term): (f64, f64), n: i32| {
                let term = -term * x * x / f64::from(n);
                (sum + term / f64::from(2 * n + 1), term)
            };
            (1..120).fold((x, x), term).0 * std::f64::consts::FRAC_2_SQRT_PI
        };
        for x in (-450..=450).map(|i| i as f32 / 100.0) {
            let error = (f64::from(erf(x)) - exact(f64::from(x))).abs();
            assert!(error < 4e-7, "erf({x}): {error:.1e}");
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!((erf(0.0), erf(1e30), erf(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn sums_and_maxima_take_every_number() {
        for n in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            assert_eq!(sum(&values), values.iter().sum::<f32>(), "{n}");
            assert_eq!(dot(&values, &values), values.iter().map(|x| x * x).sum::<f32>(), "{n}");
            assert_eq!(max(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{n}");
        }
        assert!(sum(&[1.0, f32::NAN]).is_nan());
    }
}
