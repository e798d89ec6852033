"""Asks a server by OpenAI's own client, and prints what it says as a line of JSON. Arguments: the server's address, and the prompt."""

import json
import sys

import openai


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=60)
    prompt = sys.argv[2]
    model = next(iter(client.models.list())).id
    options = {"model": model, "max_tokens": 9, "temperature": 0}
    messages = [{"role": "user", "content": prompt}]
    text = client.completions.create(prompt=prompt, logprobs=2, **options)
    chat = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **options)
    text_parts = list(client.completions.create(prompt=prompt, stream=True, logprobs=2, **options))
    chat_parts = list(client.chat.completions.create(messages=messages, stream=True, logprobs=True, top_logprobs=2,
                                                     stream_options={"include_usage": True}, **options))
    try:
        client.completions.create(prompt=[100_000], **options)
        refusal = ""
    except openai.BadRequestError as error:
        refusal = str(error)
    print("said " + json.dumps({
        "model": model,
        "text": text.choices[0].text,
        "end": text.choices[0].finish_reason,
        "text_tokens": text.usage.completion_tokens,
        "text_scores": text.choices[0].logprobs.token_logprobs,
        "chat": chat.choices[0].message.content,
        "role": chat.choices[0].message.role,
        "chat_scores": [[token.logprob, len(token.top_logprobs)] for token in chat.choices[0].logprobs.content],
        "text_stream": "".join(part.choices[0].text for part in text_parts),
        "chat_stream": "".join(part.choices[0].delta.content or "" for part in chat_parts if part.choices),
        "text_stream_scores": [score for part in text_parts if part.choices[0].logprobs for score in part.choices[0].logprobs.token_logprobs],
        "chat_stream_scores": [[token.logprob, len(token.top_logprobs)] for part in chat_parts if part.choices and part.choices[0].logprobs
                               for token in part.choices[0].logprobs.content],
        "chat_stream_tokens": chat_parts[-1].usage.completion_tokens,
        "refusal": refusal,
        "sampled": [choice.text for choice in client.completions.create(prompt=prompt, n=2, seed=5, model=model, max_tokens=9, temperature=1).choices],
        "stopped": client.completions.create(prompt=prompt, stop=[text.choices[0].text[3]], **options).choices[0].text}))


if __name__ == "__main__":
    main()
