//! Matrix products with a bias.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kiln_kernels::{Activation, Branch, DropoutStream, Projection};

use crate::config::Product;
use crate::init::{Init, Role};

/// `x · weight + bias`, and the adapters next to it.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[n_in, n_out]`
    pub weight: Param<Tensor<2>>,
    /// `[n_out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// Low-rank adapters of some columns (LoRA, Hu et al. 2021); usually none.
    pub lora: Vec<Adapter>,
}

/// A low-rank product next to a [`Linear`] layer: `scale * (dropout(x) · a) · b`.
#[derive(Module, Debug)]
pub struct Adapter {
    /// `[n_in, rank]`
    pub a: Param<Tensor<2>>,
    /// `[rank, width]`; starts at 0.
    pub b: Param<Tensor<2>>,
    /// First of the layer's columns that the product is added to.
    start: usize,
    scale: f64,
    dropout: f64,
}

impl Linear {
    /// Initializes a projection of a layer. If the configuration has biases, it has one, which starts at 0.
    pub(crate) fn init(init: &Init, shape: [usize; 2], role: Role) -> Self {
        if init.config.bias {
            Self::init_with_bias(init, shape, role)
        } else {
            Self::init_without_bias(init, shape, role)
        }
    }

    pub(crate) fn init_with_bias(init: &Init, [n_in, n_out]: [usize; 2], role: Role) -> Self {
        let bias = Some(init.constant(n_out, 0.0));
        Self { bias, ..Self::init_without_bias(init, [n_in, n_out], role) }
    }

    pub(crate) fn init_without_bias(init: &Init, shape: [usize; 2], role: Role) -> Self {
        Self { weight: init.linear_weight("weight", shape, role), bias: None, lora: Vec::new() }
    }

    /// Adds the adapters that the configuration asks for next to this `product`.
    pub(crate) fn adapted(self, init: &Init, product: Product) -> Self {
        let [n_in, _] = self.weight.dims();
        let (rank, config) = (init.config.lora.rank, &init.config.lora);
        let adapter = |(i, columns): (usize, crate::config::AdapterColumns)| {
            let init = init.at("lora").at(i);
            Adapter {
                a: init.adapter("a", [n_in, rank]),
                b: init.zeros([rank, columns.width]),
                start: columns.start,
                scale: config.alpha / rank as f64,
                dropout: config.dropout,
            }
        };
        let lora = init.config.adapters_of(product).into_iter().enumerate().map(adapter).collect();
        Self { lora, ..self }
    }

    /// Computes `x · weight + bias`, and what adapters add to it, with their dropout if there is a `stream`.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`
    /// - result: `[M, n_out]`
    pub fn forward(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        self.product(x, self.bias.as_ref().map(Param::val), stream)
    }

    fn product(&self, x: Tensor<2>, bias: Option<Tensor<1>>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let y = kiln_kernels::linear(x.clone(), self.weight.val(), bias);
        if self.lora.is_empty() { y } else { y + self.low_rank(x, stream) }
    }

    /// What the adapters add, `[M, n_out]`. One product with the A of all and one with their B, so that backward adds two gradients of
    /// `x` only: the sum has the same bits in any order.
    fn low_rank(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Tensor<2> {
        let Adapter { scale, dropout, .. } = self.lora[0];
        let a = self.lora.iter().map(|adapter| adapter.a.val()).collect();
        let b = self.lora.iter().map(|adapter| self.over_all_columns(adapter)).collect();
        let x = match stream {
            Some(stream) if dropout > 0.0 => kiln_kernels::dropout(x, dropout, stream),
            _ => x,
        };
        kiln_kernels::linear(kiln_kernels::linear(x, joined(a, 1), None) * scale, joined(b, 0), None)
    }

    /// The adapter's B with zeros for the columns that it adds nothing to, `[rank, n_out]`.
    fn over_all_columns(&self, adapter: &Adapter) -> Tensor<2> {
        let (b, n_out) = (adapter.b.val(), self.weight.dims()[1]);
        let ([rank, width], device, dtype) = (b.dims(), b.device(), b.dtype());
        let end = adapter.start + width;
        let zeros = |n: usize| (n > 0).then(|| Tensor::zeros([rank, n], (&device, dtype)));
        joined([zeros(adapter.start), Some(b), zeros(n_out - end)].into_iter().flatten().collect(), 1)
    }

    /// [`Self::forward`] as the end of a residual branch: the residual sum computes the product, unless it has adapters.
    ///
    /// # Shapes
    /// - `x`: `[M, n_in]`. The returned branch evaluates to `[M, n_out]`.
    pub(crate) fn branch(&self, x: Tensor<2>, stream: Option<&DropoutStream>) -> Branch {
        let bias = self.bias.as_ref().map(Param::val);
        if self.lora.is_empty() {
            return Branch { x, weight: Some(self.weight.val()), bias };
        }
        Branch { x: self.product(x, None, stream), weight: None, bias }
    }

    /// The layer as the output projection, from hidden states to logits.
    pub(crate) fn projection(&self) -> Projection {
        let bias = self.bias.as_ref().map(Param::val);
        Projection { weight: self.weight.val(), transposed: false, bias, softcap: None }
    }

    /// Computes [`Self::forward`], then the activation, then dropout.
    pub(crate) fn forward_activated(
        &self,
        x: Tensor<2>,
        by: Activation,
        dropout: Option<(f64, &DropoutStream)>,
        stream: Option<&DropoutStream>,
    ) -> Tensor<2> {
        if self.lora.is_empty() {
            let bias = self.bias.as_ref().map(Param::val);
            return kiln_kernels::linear_activated(x, self.weight.val(), bias, by, dropout);
        }
        let y = by.reference(self.forward(x, stream));
        match dropout {
            Some((p, stream)) => kiln_kernels::dropout(y, p, stream),
            None => y,
        }
    }
}

/// Concatenates `parts` along `dim`; one part alone is not copied.
fn joined(mut parts: Vec<Tensor<2>>, dim: usize) -> Tensor<2> {
    if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, dim) }
}
