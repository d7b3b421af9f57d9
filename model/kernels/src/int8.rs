//! Weights in int8 for searches on the CPU: chosen when a trained model is used, never in training.
//!
//! A program rounds the weights once, and installs them on the thread that calls the model. The tensors stay as they are: a product
//! finds the rounded form of its weight by where the weight lies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::host::matrix::{Int8Matrix, Matrix};
use crate::host::view;

pub use crate::host::matrix::Int8;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Int8Weights>>> = const { RefCell::new(None) };
}

/// Weights in int8, next to the tensors that they were rounded from.
///
/// ```
/// use std::sync::Arc;
///
/// use burn::tensor::{Device, Tensor};
/// use kiln_kernels::int8::{Int8, Int8Weights};
///
/// let device = Device::flex();
/// let weight = Tensor::<2>::from_floats([[1.0, 0.3], [0.0, -1.0]], &device);
/// let mut weights = Int8Weights::new(Int8::Weights);
/// weights.add(&weight, false);
///
/// let x = Tensor::<2>::from_floats([[1.0, 0.0]], &device);
/// let in_f32 = kiln_kernels::linear(x.clone(), weight.clone(), None);
/// let _installed = Arc::new(weights).install();
/// let in_int8 = kiln_kernels::linear(x, weight, None);
/// let error: f32 = (in_f32 - in_int8).abs().max().into_scalar();
/// assert!(error > 0.0 && error < 0.5 / 127.0);
/// ```
#[derive(Debug)]
pub struct Int8Weights {
    kind: Int8,
    weights: HashMap<Place, (FlexTensor, Int8Matrix)>,
}

/// Where a matrix lies, and whether its transpose is the right operand.
type Place = (usize, [usize; 2], bool);

fn place(weight: &FlexTensor, transposed: bool) -> Place {
    let layout = weight.layout();
    let first = weight.bytes().as_ptr() as usize + layout.start_offset() * weight.dtype().size();
    (first, [layout.shape()[0], layout.shape()[1]], transposed)
}

impl Int8Weights {
    /// Creates an empty set.
    pub fn new(kind: Int8) -> Self {
        Self { kind, weights: HashMap::new() }
    }

    /// Rounds a weight. Each column of the right operand gets a scale.
    ///
    /// # Shapes
    /// - `weight`: `[K, N]`, as [`linear`](crate::linear) takes it, or if `transposed` `[N, K]`, as
    ///   [`linear_transposed`](crate::linear_transposed) does
    ///
    /// # Panics
    /// If the weight does not lie on the CPU's backend, or its rows do not lie one after the other.
    pub fn add(&mut self, weight: &Tensor<2>, transposed: bool) {
        let DispatchTensorKind::Flex(BackendTensor::Float(weight)) = weight.clone().into_dispatch().kind else {
            panic!("int8 is for the CPU's backend");
        };
        assert!(weight.is_contiguous(), "a weight whose rows lie one after the other");
        let values = view(&weight);
        let [rows, columns] = [weight.layout().shape()[0], weight.layout().shape()[1]];
        let matrix = Matrix::new(&values, [rows, columns], columns);
        let rounded = Int8Matrix::new(if transposed { matrix.transposed() } else { matrix }, self.kind);
        drop(values);
        self.weights.insert(place(&weight, transposed), (weight, rounded));
    }

    /// Returns how many weights there are.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Lets products that the calling thread calls take these weights in int8 while the guard lives.
    #[must_use = "dropping the guard ends it"]
    pub fn install(self: Arc<Self>) -> Int8Guard {
        Int8Guard { previous: CURRENT.replace(Some(self)), thread_bound: PhantomData }
    }

    /// Returns the rounded form of a weight.
    pub(crate) fn find(&self, weight: &FlexTensor, transposed: bool) -> Option<&Int8Matrix> {
        // The tensor is kept, so that nothing else can lie there.
        self.weights.get(&place(weight, transposed)).map(|(_, rounded)| rounded)
    }
}

/// Returns the weights that the calling thread has installed.
pub(crate) fn installed() -> Option<Arc<Int8Weights>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Restores what was installed before when dropped.
#[derive(Debug)]
pub struct Int8Guard {
    previous: Option<Arc<Int8Weights>>,
    /// The guard belongs to its thread: it must not move to another one.
    thread_bound: PhantomData<*const ()>,
}

impl Drop for Int8Guard {
    fn drop(&mut self) {
        CURRENT.replace(self.previous.take());
    }
}
