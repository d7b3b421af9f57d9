//! The operators that the PyTorch baseline times alone, at its shapes.

use anyhow::Result;
use burn::tensor::{Device, FloatDType, Tensor};
use kiln_kernels::{
    AttentionConfig, AttentionMask, CrossEntropyConfig, Projected, attention, cross_entropy, layer_norm, linear,
    linear_transposed, linear_weight_gradient,
};

use super::super::peer::PeerOperator;
use super::bench::Bench;
use super::timing::Timed;

/// The shape of the baseline's attention, which its lines do not contain: batch, heads, length, dimensions of a head.
const ATTENTION: [usize; 4] = [16, 12, 1024, 64];

/// An operator that Kiln and the baseline have measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedOperator {
    /// The baseline's name for it.
    pub name: String,
    /// One call in Kiln.
    pub ours: Timed,
    /// Milliseconds per call in the baseline.
    pub theirs_ms: f64,
}

/// Times the operators of `theirs` that Kiln has, at the same shapes, `repeats` times each.
///
/// # Errors
/// If the device fails.
pub fn measure_compared(
    theirs: &[PeerOperator],
    dtype: FloatDType,
    device: &Device,
    repeats: usize,
) -> Result<Vec<ComparedOperator>> {
    let bench = Bench::new(dtype, device, repeats);
    let known = theirs.iter().filter_map(|theirs| Some((theirs, Operator::parse(&theirs.name)?)));
    let timed = known.map(|(theirs, operator)| {
        let ours = operator.time(&bench)?;
        bench.device.memory_cleanup();
        Ok(ComparedOperator { name: theirs.name.clone(), ours, theirs_ms: theirs.ms })
    });
    timed.collect()
}

/// Whether Kiln has the operator that the baseline calls `name`.
pub fn is_known(name: &str) -> bool {
    Operator::parse(name).is_some()
}

/// An operator as the baseline's lines name it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    /// `matmul nn MxKxN`: a forward pass.
    Forward([usize; 3]),
    /// `matmul nt MxKxN`: the weight is `[N, K]`, as for the gradient of an input.
    Transposed([usize; 3]),
    /// `matmul tn KxMxN`: the gradient of a weight `[K, N]`.
    WeightGradient([usize; 3]),
    /// `attention fwd causal=True`, `attention fwd+bwd causal=False`.
    Attention { causal: bool, backward: bool },
    /// `layer_norm fwd+bwd MxD`.
    LayerNorm([usize; 2]),
    /// `xent fwd+bwd MxV compiled`.
    CrossEntropy([usize; 2]),
}

impl Operator {
    fn parse(name: &str) -> Option<Self> {
        let words: Vec<&str> = name.split_whitespace().collect();
        match words[..] {
            ["matmul", "nn", shape] => sizes(shape).map(Self::Forward),
            ["matmul", "nt", shape] => sizes(shape).map(Self::Transposed),
            ["matmul", "tn", shape] => sizes(shape).map(Self::WeightGradient),
            ["attention", pass @ ("fwd" | "fwd+bwd"), causal @ ("causal=True" | "causal=False")] => {
                Some(Self::Attention { causal: causal.ends_with("True"), backward: pass == "fwd+bwd" })
            }
            ["layer_norm", "fwd+bwd", shape] => sizes(shape).map(Self::LayerNorm),
            ["xent", "fwd+bwd", shape, "compiled"] => sizes(shape).map(Self::CrossEntropy),
            _ => None,
        }
    }

    fn time(self, bench: &Bench) -> Result<Timed> {
        let kept = |n: usize| bench.bytes(n) as f64;
        match self {
            Self::Forward([m, k, n]) => {
                let (x, w) = (bench.random([m, k]), bench.random([k, n]));
                bench.watch.time(kept(m * n), || linear(x.clone(), w.clone(), None))
            }
            Self::Transposed([m, k, n]) => {
                let (x, w) = (bench.random([m, k]), bench.random([n, k]));
                bench.watch.time(kept(m * n), || linear_transposed(x.clone(), w.clone(), None))
            }
            Self::WeightGradient([k, m, n]) => {
                let (x, dy) = (bench.random([m, k]), bench.random([m, n]));
                bench.watch.time(kept(k * n), || linear_weight_gradient(x.clone(), dy.clone()))
            }
            Self::Attention { causal, backward } => {
                let [batch_size, n_heads, len, head_dim] = ATTENTION;
                let shape = [batch_size * len, n_heads * head_dim];
                let qkv_shape = [shape[0], 3 * shape[1]];
                // The baseline's forward pass runs without autograd too.
                let qkv = if backward { bench.leaf(qkv_shape) } else { bench.random(qkv_shape) };
                let (n_kv_heads, window, scale, softcap) = (n_heads, None, None, None);
                let config = AttentionConfig { batch_size, n_heads, n_kv_heads, causal, window, scale, softcap };

                let run = || {
                    let projected = Projected::SelfAttention { qkv: qkv.clone() };
                    attention(projected, &AttentionMask::default(), None, &config)
                };
                match backward {
                    true => bench.with_backward(shape, run),
                    false => bench.watch.time(2.0 * kept(shape[0] * shape[1]), run),
                }
            }
            Self::LayerNorm([m, d]) => {
                let (x, gamma, beta) = (bench.leaf([m, d]), bench.leaf([d]), bench.leaf([d]));
                bench.with_backward([m, d], || layer_norm(x.clone(), gamma.clone(), beta.clone(), 1e-5))
            }
            Self::CrossEntropy([m, v]) => {
                let (logits, labels) = (bench.leaf([m, v]), Tensor::from_inner(bench.numbers(m, v)));
                let config = CrossEntropyConfig { label_smoothing: 0.0, ignore_index: -1 };
                bench.watch.time(kept(2 * m * v), || {
                    let sums = cross_entropy(logits.clone(), labels.clone(), &config);
                    let gradients = sums.loss_sum.backward();
                    (sums, gradients)
                })
            }
        }
    }
}

/// Parses `16384x768`.
fn sizes<const N: usize>(shape: &str) -> Option<[usize; N]> {
    let sizes: Vec<usize> = shape.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    sizes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> PeerOperator {
        PeerOperator { name: name.into(), ms: 1.0 }
    }

    #[test]
    fn names_of_the_baseline_are_parsed_and_others_ignored() {
        for (name, wanted) in [
            ("matmul tn 768x32768x2304", Some(Operator::WeightGradient([768, 32_768, 2304]))),
            ("attention fwd+bwd causal=False", Some(Operator::Attention { causal: false, backward: true })),
            ("xent fwd+bwd 16384x50304 compiled", Some(Operator::CrossEntropy([16_384, 50_304]))),
            ("matmul nn 16384x768", None),
            ("matmul nn 16384x768xx2", None),
            ("conv fwd 8x8", None),
        ] {
            assert_eq!(Operator::parse(name), wanted, "{name}");
        }
    }

    #[test]
    fn operators_are_timed_at_the_shapes_of_the_baseline() {
        let names = [
            "matmul nn 8x16x24",
            "matmul nt 8x16x24",
            "matmul tn 16x8x24",
            "layer_norm fwd+bwd 8x16",
            "xent fwd+bwd 8x24 compiled",
        ];
        let theirs: Vec<_> = names.iter().chain(&["conv fwd 8x8"]).map(|name| peer(name)).collect();
        let found = measure_compared(&theirs, FloatDType::F32, &Device::flex().autodiff(), 1).expect("a CPU");
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), names);
        assert!(found.iter().filter(|found| found.ours.device > 0.0).count() >= 4, "{found:?}");
    }
}
