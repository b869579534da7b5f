"""An agent on the real OpenAI client, instrumented by a real package, that exports its traces over OTLP.

`python -m tests.support.instrumented_agent openinference|gen_ai MODEL_URL TRACES_URL ATTEMPTS` attempts each task
twice: a failure, and a retry that reads advice.
"""

import os
import sys

import openai
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

TOOLS: list[openai.types.chat.ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
]


def instrument(convention: str, provider: TracerProvider) -> None:
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    if convention == "openinference":
        from openinference.instrumentation.openai import OpenAIInstrumentor
    else:
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)


def answer(client: openai.OpenAI, task: str, advice: str) -> str:
    """Ask the model, use the tool that it calls, and ask again."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "system", "content": f"Handle refunds. {advice}".strip()},
        {"role": "user", "content": task},
    ]
    for _ in range(3):
        said = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
        if not said.tool_calls:
            break
        messages.append(said)  # type: ignore[arg-type]
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": f"Order of {task}"} for call in said.tool_calls
        ]
    return said.content or ""


def main(convention: str, model_url: str, traces_url: str, attempts: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=traces_url)))
    instrument(convention, provider)
    tracer = provider.get_tracer("agent")
    with openai.OpenAI(base_url=model_url, api_key="none") as client:
        for number in range(int(attempts)):
            advice = "Search first." if number % 2 else ""
            with tracer.start_as_current_span("attempt") as span:
                span.set_attribute("retroformer.task.id", f"refund-{number // 2}")
                span.set_attribute("retroformer.advice", advice)
                said = answer(client, f"Refund {number // 2}.", advice)
                span.set_attribute("retroformer.score", float(said == "Refunded."))
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
