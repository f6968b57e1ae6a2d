//! `nrlc generate`: continues a prompt, showing the text as it comes.

use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use nrl_ir::host::Value;
use nrl_ir::program::{Chat, Sampling};
use nrl_runtime::hf::stream::TextStream;
use nrl_runtime::rng::Stream;
use nrl_runtime::rollout::batch::Prompt;
use nrl_runtime::rollout::{Job, OnToken};
use nrl_runtime::run::error::RunError;
use nrl_runtime::run::machine::Machine;
use nrl_runtime::text::Text;

use crate::args::GenerateArgs;
use crate::load;

/// Runs the command.
pub fn run(args: &GenerateArgs) -> ExitCode {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        stop: vec![],
        stop_ids: vec![],
        min_new: 0,
    };
    let compiled = match load::model(&args.model, args.context, sampling.clone()) {
        Ok(compiled) => compiled,
        Err(code) => return code,
    };
    let result =
        Machine::start(compiled, &load::engine()).and_then(|m| generate(m, args, sampling));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!();
            load::fail(&e)
        }
    }
}

fn generate(mut machine: Machine, args: &GenerateArgs, options: Sampling) -> Result<(), RunError> {
    let text = machine.texts[0].clone();
    let chat = args.chat.then_some(Chat { system: None });
    let (shown, ids) = text.prompt(&Value::text(&args.prompt), chat.as_ref())?;
    machine.load_initial()?;
    let prompt = Prompt { number: 0, ids, text: shown, answer: Value::None, row: Value::None };
    let stream = Arc::new(Mutex::new(TextStream::default()));
    let job = Job {
        generator: 0,
        prompts: Arc::new(vec![Arc::new(prompt)]),
        copies: 1,
        max_new: Some(args.max_new),
        options,
        stream: Stream::new(args.seed),
        text: text.clone(),
        on_token: Some(teller(stream.clone(), text.clone())),
    };
    machine.generate(job)?;
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{}", stream.finish(&text.tokenizer));
    Ok(())
}

/// Writes each piece of text as soon as it is certain.
fn teller(stream: Arc<Mutex<TextStream>>, text: Arc<Text>) -> OnToken {
    Arc::new(move |_, id| {
        // Stop tokens that are not special would show.
        if text.stop_ids().contains(&id) {
            return;
        }
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        print!("{}", stream.push(&text.tokenizer, id));
        std::io::stdout().flush().ok();
    })
}
