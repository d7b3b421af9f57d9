//! Runs the instructions of a pickle that build tensors, dictionaries, lists and numbers (Python's `pickletools`, protocols 2
//! to 5).
//!
//! Values stand in one list and refer to each other by their numbers, and texts are shared. So an instruction adds one value of
//! constant size, and nothing here recurses.

use std::collections::HashMap;
use std::rc::Rc;

/// Where the elements of a tensor are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage {
    /// PyTorch's class, for example `FloatStorage`.
    pub(super) kind: Rc<str>,
    /// Name of the file with the elements.
    pub(super) key: Rc<str>,
}

/// The largest description. Models of thousands of tensors have a few hundred kilobytes.
const MAX_BYTES: usize = 64 << 20;
/// Most values of a description.
const MAX_VALUES: usize = 1 << 22;
/// Most dimensions of a tensor.
const MAX_DIMS: usize = 8;

/// A value's number.
pub(super) type Id = usize;

#[derive(Debug)]
pub(super) enum Value {
    /// Values that no tensor needs: None, a float, the state of an object.
    Other,
    /// An integer, or a truth value as 0 or 1.
    Int(i64),
    Text(Rc<str>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    List(Vec<Id>),
    Function(Function),
    Storage(Rc<Storage>),
    Tensor {
        storage: Rc<Storage>,
        offset: usize,
        shape: Vec<usize>,
        stride: Vec<usize>,
    },
}

/// The functions that a pickle may name.
#[derive(Debug)]
pub(super) enum Function {
    Dict,
    RebuildTensor,
    RebuildParameter,
    /// A class of storages.
    Storage(Rc<str>),
}

impl Function {
    fn find(module: &str, name: &str) -> Result<Self, String> {
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Self::Dict),
            ("torch._utils", "_rebuild_tensor_v2") => Ok(Self::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Self::RebuildParameter),
            ("torch", class) if class.ends_with("Storage") => Ok(Self::Storage(class.into())),
            _ => Err(format!(
                "calls {module}.{name}, which is not one of the functions that build tensors; Kiln runs no code of a model file: \
                 load it with transformers where you trust it, and save it with save_pretrained"
            )),
        }
    }
}

/// Runs the instructions of a pickle, and returns its result.
pub(super) fn run(pickle: &[u8]) -> Result<(Machine<'_>, Id), String> {
    let mut machine = Machine {
        bytes: &pickle[..pickle.len().min(MAX_BYTES)],
        at: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    match machine.run() {
        Ok(top) => Ok((machine, top)),
        Err(Problem::Refused(reason)) => Err(reason),
        Err(Problem::Damaged) if machine.bytes.len() < pickle.len() => {
            Err(format!("has a description of more than {MAX_BYTES} bytes; it is not a model"))
        }
        Err(Problem::Damaged) => {
            Err(format!("is damaged: its description of the tensors makes no sense at byte {}", machine.at))
        }
    }
}

enum Problem {
    /// A pickle of something else.
    Refused(String),
    /// Not a pickle.
    Damaged,
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

/// The state of a pickle that is being run.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    /// The next byte; in the end, the length of the pickle.
    pub(super) at: usize,
    pub(super) values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl Machine<'_> {
    /// Runs the instructions and returns the result.
    fn run(&mut self) -> Result<Id, Problem> {
        loop {
            let instruction = self.number(1)? as u8;
            if instruction == b'.' {
                return self.pop();
            }
            let done = self.constant(instruction)? || self.container(instruction)? || self.memory(instruction)?;
            if !done {
                return Err(Problem::Refused(format!(
                    "has the instruction {instruction:#04x} at byte {}, which a dictionary of tensors does not need; Kiln runs no \
                     code of a model file",
                    self.at - 1
                )));
            }
        }
    }

    /// Instructions that push a constant or name a function.
    fn constant(&mut self, instruction: u8) -> Result<bool, Problem> {
        let value = match instruction {
            b'N' => Value::Other,
            0x88 | 0x89 => Value::Int(i64::from(instruction == 0x88)),
            b'G' => {
                self.take(8)?;
                Value::Other
            }
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int(i64::from((self.number(4)? as u32).cast_signed())),

            0x8a => {
                let len = self.number(1)? as usize;
                let digits = self.take(len)?;
                let sign = digits.last().is_some_and(|digit| digit & 0x80 != 0);
                if len > 8 {
                    return Err(Problem::Damaged);
                }
                let mut wide = [if sign { 0xff } else { 0 }; 8];
                wide[..len].copy_from_slice(digits);
                Value::Int(i64::from_le_bytes(wide))
            }

            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Function(Function::find(&module, &name)?)
            }
            0x93 => {
                let [name, module] = [self.pop()?, self.pop()?];
                let (Value::Text(module), Value::Text(name)) = (&self.values[module], &self.values[name]) else {
                    return Err(Problem::Damaged);
                };
                Value::Function(Function::find(module, name)?)
            }
            _ => return Ok(false),
        };
        self.push(value)?;
        Ok(true)
    }

    /// Instructions that build tuples, lists and dictionaries, or call a function.
    fn container(&mut self, instruction: u8) -> Result<bool, Problem> {
        match instruction {
            b'(' => self.marks.push(self.stack.len()),
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b']' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,

            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Tuple(items))?;
            }
            0x85..=0x87 => {
                let n = usize::from(instruction - 0x84);
                let start = self.stack.len().checked_sub(n).ok_or(Problem::Damaged)?;
                let items = self.stack.split_off(start);
                self.push(Value::Tuple(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.append(&items)?;
            }

            b's' => {
                let [value, key] = [self.pop()?, self.pop()?];
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set(&items)?;
            }

            // The attributes of an object; a dictionary of tensors keeps the versions of its modules there.
            b'b' => _ = self.pop()?,
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(Value::Storage(Rc::new(storage)))?;
            }
            b'R' => {
                let [arguments, function] = [self.pop()?, self.pop()?];
                let id = self.call(function, arguments)?;
                self.stack.push(id);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Instructions that store a value under a number, and read it again.
    fn memory(&mut self, instruction: u8) -> Result<bool, Problem> {
        match instruction {
            0x80 => _ = self.take(1)?,
            0x95 => _ = self.take(8)?,
            b'q' | b'r' | 0x94 => {
                let key = match instruction {
                    b'q' => self.number(1)?,
                    b'r' => self.number(4)?,
                    _ => self.memo.len() as u64,
                };
                let top = *self.stack.last().ok_or(Problem::Damaged)?;
                self.memo.insert(key, top);
            }
            b'h' | b'j' => {
                let key = self.number(if instruction == b'h' { 1 } else { 4 })?;
                let id = *self.memo.get(&key).ok_or(Problem::Damaged)?;
                self.stack.push(id);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn push(&mut self, value: Value) -> Result<(), Problem> {
        let id = self.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn add(&mut self, value: Value) -> Result<Id, Problem> {
        if self.values.len() == MAX_VALUES {
            return Err(Problem::Refused(format!("describes more than {MAX_VALUES} values; it is not a model")));
        }
        self.values.push(value);
        Ok(self.values.len() - 1)
    }

    fn pop(&mut self) -> Result<Id, Problem> {
        // Values below a mark belong to an unfinished container.
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= bottom {
            return Err(Problem::Damaged);
        }
        self.stack.pop().ok_or(Problem::Damaged)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, Problem> {
        let mark = self.marks.pop().ok_or(Problem::Damaged)?;
        Ok(self.stack.split_off(mark))
    }

    /// Adds keys and values to the dictionary on the stack.
    fn set(&mut self, items: &[Id]) -> Result<(), Problem> {
        let top = *self.stack.last().ok_or(Problem::Damaged)?;
        let Value::Dict(entries) = &mut self.values[top] else { return Err(Problem::Damaged) };
        if !items.len().is_multiple_of(2) {
            return Err(Problem::Damaged);
        }
        entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    /// Adds items to the list on the stack.
    fn append(&mut self, items: &[Id]) -> Result<(), Problem> {
        let top = *self.stack.last().ok_or(Problem::Damaged)?;
        let Value::List(list) = &mut self.values[top] else { return Err(Problem::Damaged) };
        list.extend_from_slice(items);
        Ok(())
    }

    fn call(&mut self, function: Id, arguments: Id) -> Result<Id, Problem> {
        let Value::Tuple(arguments) = &self.values[arguments] else { return Err(Problem::Damaged) };
        let argument = |i: usize| arguments.get(i).map(|id| &self.values[*id]).ok_or(Problem::Damaged);
        match &self.values[function] {
            Value::Function(Function::Dict) if arguments.is_empty() => self.add(Value::Dict(Vec::new())),
            Value::Function(Function::RebuildParameter) => arguments.first().copied().ok_or(Problem::Damaged),
            Value::Function(Function::RebuildTensor) => {
                let (Value::Storage(storage), Value::Int(offset)) = (argument(0)?, argument(1)?) else {
                    return Err(Problem::Damaged);
                };
                let [shape, stride] = [argument(2)?, argument(3)?].map(|sizes| self.sizes(sizes));
                let offset = usize::try_from(*offset).map_err(|_| Problem::Damaged)?;
                let (storage, shape, stride) = (storage.clone(), shape?, stride?);
                self.add(Value::Tensor { storage, offset, shape, stride })
            }
            _ => Err(Problem::Damaged),
        }
    }

    fn sizes(&self, value: &Value) -> Result<Vec<usize>, Problem> {
        let Value::Tuple(items) = value else { return Err(Problem::Damaged) };
        if items.len() > MAX_DIMS {
            return Err(Problem::Refused(format!("has a tensor of {} dimensions, more than {MAX_DIMS}", items.len())));
        }
        let size = |id: &Id| match &self.values[*id] {
            Value::Int(n) => usize::try_from(*n).map_err(|_| Problem::Damaged),
            _ => Err(Problem::Damaged),
        };
        items.iter().map(size).collect()
    }

    /// Reads `("storage", class, key, device, elements)`.
    fn storage(&self, id: Id) -> Result<Storage, Problem> {
        let Value::Tuple(items) = &self.values[id] else { return Err(Problem::Damaged) };
        let mut items = items.iter().map(|id| &self.values[*id]);
        match (items.next(), items.next(), items.next()) {
            (Some(Value::Text(tag)), Some(Value::Function(Function::Storage(kind))), Some(Value::Text(key)))
                if &**tag == "storage" =>
            {
                Ok(Storage { kind: kind.clone(), key: key.clone() })
            }
            _ => Err(Problem::Damaged),
        }
    }

    fn take(&mut self, n: usize) -> Result<&[u8], Problem> {
        let end = self.at.checked_add(n).ok_or(Problem::Damaged)?;
        let taken = self.bytes.get(self.at..end).ok_or(Problem::Damaged)?;
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of `n` bytes.
    fn number(&mut self, n: usize) -> Result<u64, Problem> {
        Ok(self.take(n)?.iter().rev().fold(0, |number, digit| number << 8 | u64::from(*digit)))
    }

    /// A text after its length, a number of `n` bytes.
    fn text(&mut self, n: usize) -> Result<Value, Problem> {
        let len = self.number(n)? as usize;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| Problem::Damaged)?;
        Ok(Value::Text(text.into()))
    }

    fn line(&mut self) -> Result<String, Problem> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or(Problem::Damaged)?;
        let line = std::str::from_utf8(&rest[..len]).map_err(|_| Problem::Damaged)?.to_owned();
        self.at += len + 1;
        Ok(line)
    }
}
