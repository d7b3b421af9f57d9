//! Initialization, on the host. Each parameter has its own random stream, derived from the seed and the parameter's path.
//!
//! The weights are therefore equal on every device and independent of the order of initialization. A model with one more
//! layer starts with the same weights in all other layers. The threads of the machine share the elements of a parameter.

use std::f64::consts::TAU;
use std::fmt::Display;

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::config::{Architecture, InitScheme, NormPlacement, TransformerConfig};

/// Standard deviation of [`InitScheme::SmallNormal`].
const SMALL_STD: f64 = 0.02;

/// Elements that a thread samples at a time.
const CHUNK: usize = 1 << 14;
/// Words of 32 bits that a sample of [`unit`] takes from its stream.
const UNIT_WORDS: usize = 2;
/// The same for a sample of [`normal`].
const NORMAL_WORDS: usize = 2 * UNIT_WORDS;

/// Initializes the parameters of one module. [`Init::at`] descends to a submodule.
pub(crate) struct Init<'a> {
    pub(crate) config: &'a TransformerConfig,
    /// None for a model whose matrices are all replaced: none is drawn.
    seed: Option<u64>,
    dtype: DType,
    device: &'a Device,
    path: String,
}

/// The role of a linear layer, on which its distribution depends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    /// Any other layer.
    Plain,
    /// Query, key or value projection: Xavier counts all three as one matrix of this fan-out.
    Projection {
        /// Columns of all three together.
        fan_out: usize,
    },
    /// The last product of a residual branch.
    EndOfBranch {
        /// Layers of the stack.
        n_layers: usize,
    },
}

impl<'a> Init<'a> {
    /// Checks the configuration of a model of the given architecture.
    ///
    /// # Panics
    /// If the configuration has a problem or another architecture, or if a vocabulary size that it needs is still 0.
    pub(crate) fn checked(
        config: &'a TransformerConfig,
        architecture: Architecture,
        seed: Option<u64>,
        dtype: DType,
        device: &'a Device,
    ) -> Self {
        let problems = config.validate();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        assert_eq!(config.architecture, architecture, "the configuration is of another architecture");
        let missing = match architecture {
            Architecture::EncoderDecoder => config.source_vocab_size == 0 || config.target_vocab_size == 0,
            Architecture::DecoderOnly | Architecture::EncoderOnly => config.vocab_size() == 0,
        };
        assert!(!missing, "a vocabulary size is still 0");
        Self { config, seed, dtype, device, path: String::new() }
    }

    /// Initializes something other than a model, such as a learned prompt.
    pub(crate) fn new(config: &'a TransformerConfig, seed: u64, dtype: DType, device: &'a Device) -> Self {
        Self { config, seed: Some(seed), dtype, device, path: String::new() }
    }

    /// Descends to the submodule `name`.
    pub(crate) fn at(&self, name: impl Display) -> Self {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Self { path, ..*self }
    }

    /// The weight of a linear layer, `[n_in, n_out]`.
    pub(crate) fn linear_weight(&self, name: &str, [n_in, n_out]: [usize; 2], role: Role) -> Param<Tensor<2>> {
        match self.config.init {
            InitScheme::Xavier => {
                let fan_out = if let Role::Projection { fan_out } = role { fan_out } else { n_out };
                let bound = (6.0 / (n_in + fan_out) as f64).sqrt();
                self.random(name, [n_in, n_out], UNIT_WORDS, |random| bound * (2.0 * unit(random) - 1.0))
            }
            InitScheme::Scaled => {
                let mut std = (2.0 / (5.0 * self.config.d_model as f64)).sqrt();
                if let Role::EndOfBranch { n_layers } = role {
                    std /= (2.0 * n_layers as f64).sqrt();
                }
                self.random(name, [n_in, n_out], NORMAL_WORDS, |random| std * normal(random))
            }
            InitScheme::SmallNormal => {
                let mut std = SMALL_STD;
                if let (Role::EndOfBranch { n_layers }, NormPlacement::Pre | NormPlacement::Sandwich) =
                    (role, self.config.norm)
                {
                    std /= (2.0 * n_layers as f64).sqrt();
                }
                self.random(name, [n_in, n_out], NORMAL_WORDS, |random| std * normal(random))
            }
        }
    }

    /// The first matrix of an adapter, `[n_in, rank]`: uniform within `1 / sqrt(n_in)`, as in PEFT.
    pub(crate) fn adapter(&self, name: &str, [n_in, rank]: [usize; 2]) -> Param<Tensor<2>> {
        let bound = (n_in as f64).powf(-0.5);
        self.random(name, [n_in, rank], UNIT_WORDS, |random| bound * (2.0 * unit(random) - 1.0))
    }

    /// Chooses `n` of the numbers below `end` for the parameter at `path`.
    pub(crate) fn choices(seed: u64, path: &str, n: usize, end: usize) -> Vec<usize> {
        let mut random = stream(seed, path);
        (0..n).map(|_| (unit(&mut random) * end as f64) as usize).collect()
    }

    /// A matrix of zeros that is trained.
    pub(crate) fn zeros(&self, shape: [usize; 2]) -> Param<Tensor<2>> {
        Param::from_tensor(Tensor::zeros(shape, (self.device, self.dtype)))
    }

    /// A table of token or position vectors, `[n, d_model]`: normal with standard deviation `d_model^-0.5`, or the one of
    /// [`InitScheme::SmallNormal`].
    pub(crate) fn table(&self, name: &str, n: usize) -> Param<Tensor<2>> {
        self.table_of(name, [n, self.config.d_model])
    }

    fn table_std(&self) -> f64 {
        match self.config.init {
            InitScheme::Xavier | InitScheme::Scaled => (self.config.d_model as f64).powf(-0.5),
            InitScheme::SmallNormal => SMALL_STD,
        }
    }

    /// A table of other numbers, distributed as the vectors of [`Self::table`].
    pub(crate) fn table_of(&self, name: &str, shape: [usize; 2]) -> Param<Tensor<2>> {
        let std = self.table_std();
        self.random(name, shape, NORMAL_WORDS, |random| std * normal(random))
    }

    /// A bias or a norm's scale, `[n]`.
    pub(crate) fn constant(&self, n: usize, value: f32) -> Param<Tensor<1>> {
        Param::from_tensor(Tensor::full([n], value, (self.device, self.dtype)))
    }

    /// A parameter that is not trained, `[n]`: zero until a checkpoint fills it, and saved with the other weights.
    pub(crate) fn frozen_zeros(&self, n: usize) -> Param<Tensor<1>> {
        self.constant(n, 0.0).set_require_grad(false)
    }

    /// A constant tensor of the model.
    pub(crate) fn fixed<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values, shape), (self.device, self.dtype))
    }

    /// Constant numbers of the model, such as ids.
    pub(crate) fn fixed_ints<const D: usize>(&self, values: Vec<i32>, shape: [usize; D]) -> Tensor<D, Int> {
        Tensor::from_data(TensorData::new(values, shape), (&self.device.clone().inner(), DType::I32))
    }

    fn random(
        &self,
        name: &str,
        shape: [usize; 2],
        words: usize,
        sample: impl Fn(&mut ChaCha8Rng) -> f64 + Sync,
    ) -> Param<Tensor<2>> {
        let Some(seed) = self.seed else {
            let dtype = self.dtype;
            let zeros =
                move |device: &Device, tracked: bool| Tensor::zeros(shape, (device, dtype)).set_require_grad(tracked);
            return Param::uninitialized(ParamId::new(), zeros, self.device.clone(), true, shape.into());
        };
        let random = stream(seed, &self.at(name).path);
        Param::from_tensor(self.fixed(samples(&random, shape[0] * shape[1], words, sample), shape))
    }
}

/// Returns the first `n` samples of a stream, each of which takes `words` words.
fn samples(random: &ChaCha8Rng, n: usize, words: usize, sample: impl Fn(&mut ChaCha8Rng) -> f64 + Sync) -> Vec<f32> {
    let mut values = vec![0.0; n];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let mut random = random.clone();
        random.set_word_pos((chunk * CHUNK * words) as u128);
        values.iter_mut().for_each(|value| *value = sample(&mut random) as f32);
    });
    values
}

/// The random stream of the parameter at `path`.
fn stream(seed: u64, path: &str) -> ChaCha8Rng {
    // FNV-1a: a few hundred paths do not collide in 64 bits, and no release of any library can change it.
    let hash = path
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&hash.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Uniform in [0, 1), 53 bits.
fn unit(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Standard normal (Box and Muller 1958).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (TAU * unit(random)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_samples_have_unit_variance() {
        let mut random = stream(1, "a");
        let samples: Vec<f64> = (0..20_000).map(|_| normal(&mut random)).collect();
        let mean = samples.iter().sum::<f64>() / 20_000.0;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "mean {mean}, variance {variance}");
    }

    #[test]
    fn threads_sample_what_one_alone_would() {
        let n = 2 * CHUNK + 77;
        let alone = |sample: fn(&mut ChaCha8Rng) -> f64| -> Vec<f32> {
            let mut random = stream(3, "a");
            (0..n).map(|_| sample(&mut random) as f32).collect()
        };
        assert!(samples(&stream(3, "a"), n, UNIT_WORDS, unit) == alone(unit));
        assert!(samples(&stream(3, "a"), n, NORMAL_WORDS, normal) == alone(normal));
    }

    #[test]
    fn streams_differ_by_path_and_by_seed() {
        let first = |seed, path| stream(seed, path).next_u64();
        assert_eq!(first(1, "encoder.norm"), first(1, "encoder.norm"));
        assert_ne!(first(1, "encoder.norm"), first(2, "encoder.norm"));
        assert_ne!(first(1, "encoder.norm"), first(1, "decoder.norm"));
    }
}
