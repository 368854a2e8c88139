"""What a run shows of itself: the sections `logging` and `server` of a run file."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .section import Positive, Seconds, Section, without_credentials


class LoggingConfig(Section):
    """Files, trackers and traces of a run. metrics.jsonl is always written."""

    report_to: list[Literal["tensorboard", "wandb", "trackio", "swanlab", "mlflow"]] = Field(default_factory=list)
    log_completions: bool = Field(True, description="Write completions.jsonl and eval_completions.jsonl.")
    completions_part_mib: Positive = Field(
        256.0,
        description="Begin a new file when one of them is as large; older parts are "
        "completions-part-0001.jsonl and so on. Nothing is removed.",
    )
    project: str = Field("grpo-services", description="Project (MLflow: experiment) of the run.")
    run_name: str | None = Field(None, description="Name of the run; absent: the name of the run folder.")
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(without_credentials)] | None = Field(
        None,
        description="OpenTelemetry receiver of a trace for each group, such as http://otel-collector:4318.",
    )
    progress: bool = Field(True, description="A progress bar on a terminal, a line per step elsewhere.")


class ServerConfig(Section):
    """The trainer's live page, /events, /livez, /readyz, /info and /metrics."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(8002, ge=0, le=65535, description="0: any free port.")
    heartbeat_s: Seconds = Field(900.0, description="Report unhealthy after this long without a heartbeat of the loop.")
    loading_s: Seconds = Field(
        3600.0,
        description="Report unhealthy when reading the data, or loading the model or a checkpoint, takes longer; no "
        "heartbeat comes meanwhile.",
    )
    saving_s: Seconds = Field(
        3600.0,
        description="Report unhealthy when writing one file of a checkpoint, or the final model, takes longer; no "
        "heartbeat comes meanwhile.",
    )
