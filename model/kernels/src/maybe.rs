//! Optional tensors of backend extensions.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

/// A tensor that may be missing.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cuda"))]
pub(crate) enum Maybe<B: Backend> {
    None,
    Some(FloatTensor<B>),
}

impl<B: Backend> Maybe<B> {
    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Maybe::Some(tensor) => Some(tensor),
            Maybe::None => None,
        }
    }
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Maybe<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Maybe::None, Maybe::Some)
    }
}
