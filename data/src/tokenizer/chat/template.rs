//! A chat template: conversations as text.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::apart::{End, Limits, apart};
use super::python;
use crate::corpus::{ChatMessage, Learn, Role};

/// Longest template in bytes. The longest in use have about 20 kB.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Work that one rendering may do: for itself, for each message, and for each byte of the messages. An instruction of the
/// template costs one, and so do 64 bytes of text that it handles.
const FUEL: [u64; 3] = [50_000, 500, 1];
/// What a child process that renders may use. Text of the conversations adds to the time.
const LIMITS: Limits =
    if cfg!(test) { Limits { memory: 16 << 20, millis: 1000 } } else { Limits { memory: 256 << 20, millis: 4000 } };
/// Bytes of text for which a rendering gets another millisecond.
const BYTES_PER_MILLI: usize = 256;
/// The same while the line of a template that ended its process is looked for.
const TO_FIND_A_LINE: Limits = Limits { memory: 16 << 20, millis: 250 };
/// Longest text of a conversation in bytes.
const MAX_TEXT: usize = 64 << 20;
const OUT_OF_FUEL: &str = "it does not come to an end, or handles too much text";
/// Surround an answer while it is rendered. Unicode keeps these two for a program's own use.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// ChatML, for models without a template of their own.
const CHATML: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A problem of a template, or of a conversation with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError(pub(super) String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

/// A compiled chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    environment: Arc<Environment<'static>>,
    /// Spellings of special tokens, by the names that templates use: `bos_token`, `eos_token`, ...
    tokens: BTreeMap<String, String>,
    /// The template itself marks the answers (`{% generation %}`).
    marks_answers: bool,
    is_default: bool,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).field("tokens", &self.tokens).finish()
    }
}

impl ChatTemplate {
    /// Compiles a template. `tokens` are the spellings of special tokens by their names in templates.
    ///
    /// # Errors
    /// If the template is not valid Jinja, or is longer than 1 MiB.
    pub fn parse(source: &str, tokens: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        if source.len() > MAX_BYTES {
            return Err(TemplateError(format!("it has {} bytes, {MAX_BYTES} are allowed", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("Jinja's own delimiters"));
        environment.set_recursion_limit(100);
        python::add_to(&mut environment);
        let [open, close] = MARKS;
        environment.add_filter("generation", move |text: String| format!("{open}{text}{close}"));

        let (compiled, marks_answers) = with_filter_blocks(source);
        environment.add_template_owned("chat", compiled).map_err(|error| of_jinja(&error))?;
        let environment = Arc::new(environment);
        let is_default = source == CHATML;
        Ok(Self { source: source.into(), environment, tokens, marks_answers, is_default })
    }

    /// Returns the template for models that have none: ChatML.
    pub fn chatml() -> Self {
        Self::parse(CHATML, BTreeMap::new()).expect("valid")
    }

    /// Returns the text of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether this is the template for models that have none.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether the template itself says what an answer is.
    pub(super) fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    /// Writes a conversation as text. `add_generation_prompt`: begins an answer at the end.
    ///
    /// # Errors
    /// If the template refuses the conversation, fails, does not come to an end, or asks for too much memory.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TemplateError> {
        let texts = self.apart(&[messages], |template, messages| template.render(messages, add_generation_prompt))?;
        texts.into_iter().next().expect("one conversation")
    }

    /// Writes conversations as text in a child process, and finds the parts that the model learns: ranges of bytes.
    ///
    /// If the template has `{% generation %}` blocks, they say what an answer is. Otherwise an answer is the text between
    /// the conversation before it, with the beginning of an answer, and the conversation up to it.
    ///
    /// # Errors
    /// If the template asks for more than [`LIMITS`]. The error of a conversation: as [`Self::render`], or if its text does not
    /// begin with the text of its first messages.
    pub(super) fn render_to_learn(
        &self,
        conversations: &[&[ChatMessage]],
        learn: Learn,
    ) -> Result<Vec<Result<Marked, TemplateError>>, TemplateError> {
        self.apart(conversations, |template, messages| template.render_to_learn(messages, learn))
    }

    /// Renders conversations in a child process, as `one` does with each.
    fn apart<T: Serialize + DeserializeOwned>(
        &self,
        conversations: &[&[ChatMessage]],
        one: impl Fn(&Rendering<'_>, &[ChatMessage]) -> Result<T, TemplateError>,
    ) -> Result<Vec<Result<T, TemplateError>>, TemplateError> {
        let task = |i: usize, fuel: u64| {
            let done = one(&Rendering { template: self, most_fuel: fuel }, conversations[i]);
            serde_json::to_vec(&done.map_err(|problem| problem.0)).expect("text")
        };
        let no_process =
            |error: io::Error| TemplateError(format!("a chat template is rendered in a process of its own: {error}"));
        let n_bytes: usize = conversations.iter().copied().flatten().map(|message| message.content.len()).sum();
        let limits = Limits { millis: LIMITS.millis + (n_bytes / BYTES_PER_MILLI) as u64, ..LIMITS };
        let (done, end) = apart(limits, conversations.len(), |i| task(i, u64::MAX)).map_err(no_process)?;
        let read = |bytes: &[u8]| -> Result<T, TemplateError> {
            serde_json::from_slice::<Result<T, String>>(bytes).expect("written above").map_err(TemplateError)
        };
        let Some(end) = end else { return Ok(done.iter().map(|bytes| read(bytes)).collect()) };

        // The line is the one at which the least fuel that ends the process would have run out.
        let i = done.len();
        let (mut line, mut enough, mut too_much) = (String::new(), 0, fuel_of(conversations[i]));
        while enough < too_much {
            let fuel = (2 * enough + 1).min(enough + (too_much - enough) / 2);
            let (done, _) = apart(TO_FIND_A_LINE, 1, |_| task(i, fuel)).map_err(no_process)?;
            match done.first().map(|bytes| read(bytes)) {
                Some(Err(problem)) => line = problem.0.strip_suffix(OUT_OF_FUEL).unwrap_or_default().to_owned(),
                Some(Ok(_)) => {}
                None => {
                    too_much = fuel;
                    continue;
                }
            }
            enough = fuel + 1;
        }
        let found = match end {
            End::Memory => format!("it asks for more than {} MiB of memory", LIMITS.memory >> 20),
            End::Time => format!("it takes more than {} s", limits.millis as f64 / 1e3),
            End::Stack => "a value is nested too deeply".to_owned(),
            End::Other => "it ends the process that renders it".to_owned(),
        };
        Err(TemplateError(format!("{line}{found}; no chat template needs that, so correct the template")))
    }

    /// Returns the text that the template writes behind an answer, such as `<|im_end|>`; empty if there is none.
    ///
    /// # Errors
    /// If the template fails.
    pub fn end_of_turn(&self) -> Result<String, TemplateError> {
        const ANSWER: &str = "Q7";
        let messages = [ChatMessage::new(Role::User, "?"), ChatMessage::new(Role::Assistant, ANSWER)];
        let text = self.render(&messages, false)?;
        Ok(text.rfind(ANSWER).map(|at| text[at + ANSWER.len()..].trim().to_owned()).unwrap_or_default())
    }
}

/// The text of a conversation, and its parts that a template marks or a model learns.
pub(super) type Marked = (String, Vec<Range<usize>>);

/// A template in the process that renders it.
struct Rendering<'t> {
    template: &'t ChatTemplate,
    most_fuel: u64,
}

impl Rendering<'_> {
    fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, TemplateError> {
        Ok(self.render_marked(messages, add_generation_prompt)?.0)
    }

    /// Also returns the parts that the template marks as answers, as ranges of bytes.
    fn render_marked(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<Marked, TemplateError> {
        if messages.iter().any(|message| message.content.contains(MARKS)) {
            return Err(TemplateError(
                "a message contains U+FDD0 or U+FDD1, which are not characters: remove them".into(),
            ));
        }
        let tokens = self.template.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let context = tokens.chain([
            ("messages", messages.iter().map(of_message).collect()),
            ("add_generation_prompt", add_generation_prompt.into()),
            // As in `transformers`, which passes both even if there are none.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]);

        let mut environment = Environment::clone(&self.template.environment);
        environment.set_fuel(Some(fuel_of(messages).min(self.most_fuel)));
        let template = environment.get_template("chat").expect("added above");
        let marked = template.render(Value::from_pairs(context)).map_err(|error| of_jinja(&error))?;
        if marked.len() > MAX_TEXT {
            return Err(TemplateError(format!("the text has {} bytes, {MAX_TEXT} are allowed", marked.len())));
        }
        unmarked(&marked)
    }

    /// See [`ChatTemplate::render_to_learn`].
    fn render_to_learn(&self, messages: &[ChatMessage], learn: Learn) -> Result<Marked, TemplateError> {
        let (whole, marked) = self.render_marked(messages, false)?;
        let marks_answers = self.template.marks_answers;
        if marks_answers && marked.is_empty() && learn != Learn::Everything {
            return Err(TemplateError("no {% generation %} block of the template came to be used".into()));
        }

        let learns_all = !messages.iter().any(ChatMessage::is_unlearned_answer);
        let spans = match learn {
            Learn::Everything if learns_all => iter::once(0..whole.len()).collect(),
            Learn::Everything => {
                between(self.answers(messages, &whole, marked, ChatMessage::is_unlearned_answer)?, whole.len())
            }
            Learn::Answers if marks_answers && learns_all => marked,
            Learn::Answers => self.answers(messages, &whole, marked, |answer| answer.is_learned)?,
            Learn::LastAnswer => {
                let last = messages.iter().rposition(|message| message.role == Role::Assistant);
                if last.is_some_and(|last| !messages[last].is_learned) {
                    return Err(TemplateError(
                        "\"weight\" or \"train\" makes the last answer context, and data.text.learn = \"last_answer\" learns that one \
                         alone: set data.text.learn = \"answers\""
                            .into(),
                    ));
                }
                match last {
                    _ if marks_answers => marked.into_iter().next_back().into_iter().collect(),
                    Some(last) => vec![self.answer(messages, last, &whole)?],
                    None => Vec::new(),
                }
            }
        };
        Ok((whole, spans))
    }

    /// Finds the answers that `wanted` chooses: the template marks them all, or they are looked for.
    fn answers(
        &self,
        messages: &[ChatMessage],
        whole: &str,
        marked: Vec<Range<usize>>,
        wanted: impl Fn(&ChatMessage) -> bool,
    ) -> Result<Vec<Range<usize>>, TemplateError> {
        let answers: Vec<usize> = (0..messages.len()).filter(|i| messages[*i].role == Role::Assistant).collect();
        if !self.template.marks_answers {
            let chosen = answers.into_iter().filter(|i| wanted(&messages[*i]));
            return chosen.map(|i| self.answer(messages, i, whole)).collect();
        }
        if marked.len() != answers.len() {
            return Err(TemplateError(format!(
                "the template marks {} parts, and the conversation has {} answers: Kiln cannot find the ones that \"weight\" or \
                 \"train\" makes context",
                marked.len(),
                answers.len()
            )));
        }
        let pairs = answers.into_iter().zip(marked);
        Ok(pairs.filter(|(i, _)| wanted(&messages[*i])).map(|(_, span)| span).collect())
    }

    /// Finds answer `i` in the text of the whole conversation.
    fn answer(&self, messages: &[ChatMessage], i: usize, whole: &str) -> Result<Range<usize>, TemplateError> {
        let before = self.render(&messages[..i], true)?;
        let is_last = i + 1 == messages.len();
        let through = if is_last { whole.to_owned() } else { self.render(&messages[..=i], false)? };
        if through.starts_with(&before) && whole.starts_with(&through) {
            return Ok(before.len()..through.len());
        }
        Err(TemplateError(format!(
            "message {}: the template writes the messages up to this answer differently when others follow, so the answer cannot \
             be found: set data.text.learn = \"last_answer\", or data.text.chat_template to a template with {{% generation %}} \
             blocks",
            i + 1
        )))
    }
}

/// Returns the parts of a text of `len` bytes that lie outside `spans`.
fn between(spans: Vec<Range<usize>>, len: usize) -> Vec<Range<usize>> {
    let mut begin = 0;
    let mut outside = Vec::with_capacity(spans.len() + 1);
    for span in spans {
        outside.push(begin..span.start);
        begin = span.end;
    }
    outside.push(begin..len);
    outside.retain(|part| !part.is_empty());
    outside
}

/// Instructions that the template may run.
fn fuel_of(messages: &[ChatMessage]) -> u64 {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    let [own, per_message, per_byte] = FUEL;
    own + per_message * messages.len() as u64 + per_byte * bytes as u64
}

fn of_message(message: &ChatMessage) -> Value {
    let own = [("role", message.role.name()), ("content", message.content.as_str())];
    let more = message.more.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    Value::from_pairs(own.into_iter().chain(more))
}

/// Replaces `{% generation %}` blocks by blocks of the filter `generation`, which treat spaces in the same way.
fn with_filter_blocks(source: &str) -> (String, bool) {
    let (mut replaced, mut found, mut rest) = (String::with_capacity(source.len()), false, source);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        replaced.push_str(before);
        rest = tag;
        // The `%` of `{%` does not end a tag too.
        let Some(end) = tag[2..].find("%}").map(|at| at + 2) else { break };
        let (tag, behind) = tag.split_at(end + 2);
        let name = tag[2..end].trim_matches(['-', '+']).trim();
        match name {
            "generation" => replaced.push_str(&tag.replacen("generation", "filter generation", 1)),
            "endgeneration" => replaced.push_str(&tag.replacen("endgeneration", "endfilter", 1)),
            _ => replaced.push_str(tag),
        }
        found |= name == "generation";
        rest = behind;
    }
    replaced.push_str(rest);
    (replaced, found)
}

/// Removes the marks around answers and returns where the answers are.
fn unmarked(text: &str) -> Result<Marked, TemplateError> {
    let (mut plain, mut spans, mut open) = (String::with_capacity(text.len()), Vec::new(), None);
    for piece in text.split_inclusive(MARKS) {
        let mark = piece.chars().next_back().filter(|last| MARKS.contains(last));
        plain.push_str(&piece[..piece.len() - mark.map_or(0, char::len_utf8)]);
        match (mark, open) {
            (Some(mark), None) if mark == MARKS[0] => open = Some(plain.len()),
            (Some(mark), Some(start)) if mark == MARKS[1] => {
                spans.push(start..plain.len());
                open = None;
            }
            (None, None) => {}
            _ => return Err(TemplateError("the {% generation %} blocks of the template are nested or cut".into())),
        }
    }
    Ok((plain, spans))
}

/// Says what went wrong, and in which line of the template.
fn of_jinja(error: &minijinja::Error) -> TemplateError {
    let place = error.line().map(|line| format!("line {line} of the template: ")).unwrap_or_default();
    let found = match error.kind() {
        ErrorKind::OutOfFuel => OUT_OF_FUEL.to_owned(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    TemplateError(format!("{place}{found}"))
}

#[cfg(test)]
mod tests;
