//! Optional tensors of backend extensions.

use burn::backend::tensor::FloatTensor;
#[cfg(feature = "cuda")]
use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, ExtensionType};

/// The derive goes by the name of the tensor's type: one enum for each, made by one macro.
macro_rules! maybe {
    ($(#[$meta:meta])* $name:ident, $tensor:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, ExtensionType)]
        #[extension_type(fusion: cfg(feature = "cuda"))]
        pub(crate) enum $name<B: Backend> {
            None,
            Some($tensor<B>),
        }

        impl<B: Backend> $name<B> {
            pub(crate) fn into_option(self) -> Option<$tensor<B>> {
                match self {
                    $name::Some(tensor) => Some(tensor),
                    $name::None => None,
                }
            }
        }

        impl<B: Backend> From<Option<$tensor<B>>> for $name<B> {
            fn from(tensor: Option<$tensor<B>>) -> Self {
                tensor.map_or($name::None, $name::Some)
            }
        }
    };
}

maybe!(
    /// A tensor of floats that may be missing.
    Maybe, FloatTensor
);

#[cfg(feature = "cuda")]
maybe!(
    /// A tensor of integers that may be missing.
    MaybeInts, IntTensor
);
