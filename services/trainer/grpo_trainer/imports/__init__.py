"""The commands of TRL and ms-swift become run files. Read it in this order:

command.py      `grpo-train import-swift` and `import-trl`: which command is meant, and where the file and notes go
words.py        a script or an argument list → commands, without a shell; shell_words.py: their words, shell_values.py:
                what a shell would compute, shell_conditions.py and shell_loops.py: which branches are read, and
                which loops turn by turn, shell_functions.py: what is read where it is called;
                shell_sets.py: `set --` and `declare`
options.py      options of a command, and which were read; config_file.py: options in a file
trl_script.py   a script in Python or a notebook that calls GRPOTrainer: script_model.py, script_rows.py,
                script_episodes.py and script_rewards.py read it by script_reader.py; python_source.py tells what its
                names stand for, python_values.py the values of expressions, python_settings.py of classes and files
swift_script.py     a script that calls ms-swift's RLHFArguments
swift.py, trl.py    one trainer each: what belongs together of its options; swift_rewards.py, swift_rows.py,
                swift_episodes.py, swift_chord.py, swift_frozen.py, swift_images.py and swift_teacher.py: its
                rewards, rows, environments, demonstrations, frozen parameters, images and teacher; open_r1.py: the
                rewards of open-r1;
                generation.py: TRL's generation_kwargs
training.py     what both have alike: tables, steps, DeepSpeed, and what does not go together here
batch.py        the arithmetic of batch sizes
launcher.py     processes and machines; servers.py: GPUs, and the lines that start the servers; vllm_flags.py;
                quantized.py: QLoRA; first_adapter.py: an adapter to start from
rewards.py, rows.py     rewards and datasets, by the names that they have elsewhere
values.py       values that are written otherwise here; older_versions.py: defaults that were others
run_file.py     the run file: settings with comments, and what is not in it

What each option becomes is data: `config/trl_options.py` and `config/swift_options.py`.
"""
