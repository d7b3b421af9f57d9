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

                #[expect(unsafe_code, reason = "not every machine that the crate is compiled for has these vectors")]
                // SAFETY: `Width` has found the vectors on this machine.
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

/// Runs `work` compiled for the widest vectors of this machine. The compiler does so only if `work` is short enough to be inlined: a
/// loop with an exponential is not, and needs [`vectorized_fn!`].
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

/// GELU with tanh is `x * sigmoid(gelu_argument(x))`, since `(1 + tanh(y)) / 2` is `sigmoid(2 y)`.
#[inline(always)]
pub(crate) fn gelu_argument(x: f32) -> f32 {
    1.595_769 * (x + 0.044_715 * x * x * x)
}

/// Returns the slope of [`gelu_argument`].
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    1.595_769 * (1.0 + 3.0 * 0.044_715 * x * x)
}

/// Returns the hyperbolic tangent, to 2e-7 of its value.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // The Taylor series up to x^11 where the quotient would lose digits: its rest is below 2e-8 of the value.
    let square = x * x;
    let mut series = -1382.0 / 155_925.0;
    for coefficient in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        series = series * square + coefficient;
    }
    let quotient = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.35 { x * series } else { quotient.copysign(x) }
}

/// Returns the density of the normal distribution and its distribution function, to 2e-7. Far below 0 the function is small, but
/// not 0.
#[inline(always)]
pub(crate) fn normal(x: f32) -> [f32; 2] {
    const INVERSE_ROOT_OF_2_PI: f32 = 0.398_942_3;
    // The function at -|x| is e^(-x^2 / 2) times this polynomial of 2 / (1 + 0.3 |x|) - 1, from the highest power down. It was
    // fitted to the relative error, up to |x| = 14, by weighted least squares at Chebyshev nodes.
    const POLYNOMIAL: [f32; 9] = [
        1.499_216_9e-4,
        -1.222_969_6e-4,
        -1.480_836_7e-3,
        -3.125_025e-4,
        1.478_424_6e-2,
        5.715_621_2e-2,
        1.255_649_8e-1,
        1.932_750_2e-1,
        1.109_853e-1,
    ];

    let exponential = exp(-0.5 * x * x);
    let u = 2.0 / (1.0 + 0.3 * x.abs()) - 1.0;
    let mut polynomial = POLYNOMIAL[0];
    POLYNOMIAL[1..].iter().for_each(|c| polynomial = polynomial * u + c);

    let tail = exponential * polynomial;
    [exponential * INVERSE_ROOT_OF_2_PI, if x > 0.0 { 1.0 - tail } else { tail }]
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
    /// Adds each number of `other` to its counterpart.
    pub(crate) fn add(values: &mut [f32], other: &[f32]) {
        values.iter_mut().zip(other).for_each(|(x, added)| *x += added);
    }

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
    fn the_normal_distribution_is_right_to_2e_7() {
        // The function is 1/2 + x density(x) (1 + x^2 / 3 + x^4 / (3 5) + ...), which converges for these arguments, in f64.
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let exact = |x: f64| {
            let next = |(sum, term): (f64, f64), n: i32| {
                let term = term * x * x / f64::from(2 * n + 1);
                (sum + term, term)
            };
            0.5 + density(x) * (1..200).fold((x, x), next).0
        };
        for x in (-600..=600).map(|i| i as f32 / 100.0) {
            let [slope, found] = normal(x).map(f64::from);
            let (error, slope_error) = (found - exact(f64::from(x)), slope - density(f64::from(x)));
            assert!(error.abs() < 2e-7 && slope_error.abs() < 2e-7, "normal({x}): {error:.1e}, {slope_error:.1e}");
            assert!(found > 0.0, "normal({x}) is 0");
        }
        assert_eq!((normal(1e30)[1], normal(f32::INFINITY)[1]), (1.0, 1.0));
        assert!(normal(f32::NEG_INFINITY)[1] < f32::MIN_POSITIVE);
        assert!(normal(f32::NAN)[1].is_nan());
    }

    #[test]
    fn the_hyperbolic_tangent_is_right_to_2e_7() {
        for x in (-12_000..=12_000).map(|i| i as f32 / 1000.0) {
            let exact = f64::from(x).tanh();
            let error = (f64::from(tanh(x)) - exact).abs();
            assert!(error <= 2.5e-7 * exact.abs(), "tanh({x}): {error:.1e}");
        }
        assert_eq!((tanh(1e30), tanh(f32::NEG_INFINITY), tanh(0.0)), (1.0, -1.0, 0.0));
        assert!(tanh(f32::NAN).is_nan());
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
