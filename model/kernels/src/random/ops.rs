//! Random words as a backend extension, with the CPU loop.

use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::TensorData;
#[cfg(feature = "cuda")]
use burn::tensor::{DType, Shape};
use burn_flex::{Flex, FlexTensor};

use crate::calls::{self, Work};
use crate::dropout::philox::philox;
use crate::host::ints;

#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait RandomOps: Backend {
    /// Returns `[4, n]` words. `state`: `[4]`, seed and draw as in [`crate::DropoutStream`].
    #[fusion(dtype = DType::I32, shape = Shape::new([4, *n]))]
    fn random_words(state: IntTensor<Self>, site: u32, n: usize) -> IntTensor<Self>;
}

impl RandomOps for Flex {
    fn random_words(state: IntTensor<Self>, site: u32, n: usize) -> IntTensor<Self> {
        let _call = calls::begin(|| ("random words", vec![n], Work::moved(16.0 * n as f64)));
        let words: Vec<u32> = ints(state).into_iter().map(i32::cast_unsigned).collect();
        let (key, draw) = ([words[0], words[1]], [words[2], words[3]]);
        let mut values = vec![0_i32; 4 * n];
        for element in 0..n {
            for (plane, word) in philox([element as u32, site, draw[0], draw[1]], key).into_iter().enumerate() {
                values[plane * n + element] = (word >> 1).cast_signed();
            }
        }
        FlexTensor::from_data(TensorData::new(values, [4, n]))
    }
}
