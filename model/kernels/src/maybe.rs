//! Optional tensor arguments of backend extensions.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

/// Defines an optional tensor. The derive recognizes a tensor by the name of its type, so each kind needs its own enum.
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
    /// An optional tensor of floats.
    Maybe, FloatTensor
);

maybe!(
    /// An optional tensor of integers.
    MaybeInts, IntTensor
);
