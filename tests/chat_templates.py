"""Chat templates with the structure of current model families, written for tests.

Each is short and reproduces the relevant traits of its family: how turns begin and end, how earlier
turns and reasoning are treated, how tools are written, and how the prompt ends.
"""

from typing import NamedTuple


class Family(NamedTuple):
    """A template, the tokens at which its models stop (best first), and its other added tokens."""

    template: str
    ends: tuple[str, ...]
    tokens: tuple[str, ...] = ()


_IM = ("<|im_start|>",)
_THINK = ("<think>", "</think>")
_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
)
_TOOLS = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n"
_LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
_SPLIT = (
    "{% set content = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
    "{% if not thought and '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set content = content.split('</think>')[-1].lstrip() %}{% endif %}"
)

# Qwen 2.5, SmolLM 2, Qwen 3 Instruct 2507: every turn has the same format.
CHATML = (
    f"{_TOOLS}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content or '' }}}}"
    f"{_CALLS}<|im_end|>\n{{% endfor %}}{_PROMPT}{{% endif %}}"
)
# Qwen 3: reasoning is written in the last turn only, empty where there is none.
QWEN_3 = (
    f"{_TOOLS}{_LAST_USER}{{% for m in messages %}}{_SPLIT}<|im_start|>{{{{ m.role }}}}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}"
    "<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}"
    f"{_CALLS}<|im_end|>\n{{% endfor %}}{_PROMPT}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
# Qwen 3.5 and 3.6: the prompt begins the reasoning.
QWEN_3_5 = QWEN_3.replace(
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}",
)
# Nemotron 3: the prompt begins the reasoning; a complete conversation closes it immediately.
NEMOTRON_3 = (
    f"{_TOOLS}{{% for m in messages %}}{_SPLIT}<|im_start|>{{{{ m.role }}}}\n"
    "{% if m.role == 'assistant' %}<think>{% if thought and loop.last %}\n{{ thought }}\n"
    "{% endif %}</think>{% endif %}{{ content }}"
    f"{_CALLS}<|im_end|>\n{{% endfor %}}{_PROMPT}<think>\n{{% endif %}}"
)
# SmolLM 3: a system message with the reasoning mode, generation markers around assistant turns.
SMOLLM_3 = (
    "<|im_start|>system\nReasoning: {{ 'no_think' if enable_thinking is defined and not "
    "enable_thinking else 'think' }}\n{% if tools %}{{ tools | tojson }}{% endif %}<|im_end|>\n"
    f"{{% for m in messages %}}{_SPLIT}<|im_start|>{{{{ m.role }}}}\n"
    "{% if m.role == 'assistant' %}{% generation %}<think>\n{{ thought }}\n</think>\n{{ content }}"
    f"{_CALLS}<|im_end|>{{% endgeneration %}}{{% else %}}{{{{ content }}}}<|im_end|>{{% endif %}}\n"
    f"{{% endfor %}}{_PROMPT}{{% endif %}}"
)
# LFM 2.5: generation markers, and the reasoning under another key, of the last turn only.
LFM_2 = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\nList of tools: {{ tools | tojson }}<|im_end|>"
    "\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{% if m.thinking and loop.last %}<think>{{ m.thinking }}</think>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %})]{% endfor %}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    f"{_PROMPT}{{% endif %}}"
)
LLAMA_2 = (
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = '<<SYS>>\n' + m.content + '\n<</SYS>>\n\n' %}{% elif m.role == 'user' %}"
    "{{ bos_token }}[INST] {{ ns.system }}{{ m.content | trim }} [/INST]{% set ns.system = '' %}"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
_HEADER = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
_LLAMA_PROMPT = (
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_3 = (
    f"{{{{ bos_token }}}}{{% for m in messages %}}{_HEADER}{{{{ m.content | trim }}}}<|eot_id|>"
    f"{{% endfor %}}{_LLAMA_PROMPT}"
)
# Llama 3.1: tools in the first user message, one call per message, without a tag.
LLAMA_3_1 = (
    "{{ bos_token }}{% set ns = namespace(is_first=true) %}{% for m in messages %}"
    f"{_HEADER}{{% if m.tool_calls %}}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('only one call at once') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{% if m.role == 'user' and tools and ns.is_first %}Tools: {{ tools | tojson }}\n\n"
    "{% set ns.is_first = false %}{% endif %}{{ m.content | trim }}{% endif %}<|eot_id|>"
    f"{{% endfor %}}{_LLAMA_PROMPT}"
)
_GEMMA_LOOP = (
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ ns.head }}"
    "{{ m.content | trim }}<end_of_turn>\n{% set ns.head = '' %}"
)
_GEMMA_PROMPT = "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
GEMMA_2 = (
    "{{ bos_token }}{% set ns = namespace(head='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    f"{_GEMMA_LOOP}{{% endfor %}}{_GEMMA_PROMPT}"
)
# Gemma 3: the system message is part of the first message of the user.
GEMMA_3 = (
    "{{ bos_token }}{% set ns = namespace(head='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.head = m.content + '\n\n' %}{% else %}"
    f"{_GEMMA_LOOP}{{% endif %}}{{% endfor %}}{_GEMMA_PROMPT}"
)
# Gemma 4: reasoning in a channel, of the last turn only; the prompt closes it if it is disabled.
GEMMA_4 = (
    "{{ bos_token }}{% if tools %}<|turn>system\n{% for t in tools %}<|tool>"
    "{{ t.function | tojson }}<tool|>{% endfor %}<turn|>\n{% endif %}{% for m in messages %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.reasoning and loop.last %}<|channel>thought\n{{ m.reasoning }}\n<channel|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{% for k, v in "
    "c.function.arguments | dictsort %}{{ k }}:{{ v }}{% endfor %}<tool_call|>{% endfor %}"
    "{{ (m.content or '') | trim }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n"
    "{% if enable_thinking is defined and not enable_thinking %}<|channel>thought\n<channel|>"
    "{% endif %}{% endif %}"
)
# Mistral: tools come before the last user message, calls need ids of nine characters.
MISTRAL = (
    f"{{{{ bos_token }}}}{_LAST_USER}{{% for m in messages %}}{{% if m.role == 'system' %}}"
    "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids need nine characters') }}"
    "{% endif %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls %}[TOOL_CALLS]"
    "{% for tool_call in m.tool_calls %}{% if tool_call.id | length != 9 %}"
    "{{ raise_exception('ids need nine characters') }}{% endif %}{{ tool_call.function | tojson }}"
    "{% endfor %}{{ eos_token }}{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Magistral: reasoning between special tags.
MAGISTRAL = MISTRAL.replace(
    "{% else %}{{ m.content }}{{ eos_token }}",
    "{% else %}{% if m.reasoning_content and loop.last %}[THINK]{{ m.reasoning_content }}[/THINK]"
    "{% endif %}{{ m.content }}{{ eos_token }}",
)
# Phi 3 and 3.5: an end-of-text token after a conversation without a generation prompt.
PHI_3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
PHI_4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
# GPT-OSS: a different end token for the last turn, reasoning in a separate message.
GPT_OSS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}"
    "{% if tools %}{{ tools | tojson }}{% endif %}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|>{% endif %}<|start|>assistant"
    "{% if m.tool_calls %} to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary"
    "<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|channel|>final"
    "<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# DeepSeek V3 and R1: the prompt begins the reasoning, turns have none; arguments are text.
DEEPSEEK_R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}"
    "{% endfor %}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|Assistant|>{{ (m.content or '').split('</think>')[-1] }}"
    "{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
DEEPSEEK_V3_1 = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% set ns = namespace(user=false) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.user = true %}<|User|>{{ m.content }}{% elif m.role == 'assistant' %}"
    "{% if ns.user %}<|Assistant|></think>{% endif %}{% set ns.user = false %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '<|call|>' + c.function.name + '|' + "
    "c.function.arguments + '<|call_end|>' }}{% endfor %}{{ eos_token }}{% elif m.role == 'tool' %}"
    "{% set ns.user = false %}<|output|>{{ m.content }}<|output_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and ns.user %}<|Assistant|>"
    "{{ '<think>' if thinking is defined and thinking else '</think>' }}{% endif %}"
)
# GLM 4.5: no separate end token, the next role token ends an answer.
GLM_4_5 = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
    f"{_LAST_USER}{{% for m in messages %}}{_SPLIT}{{% if m.role == 'assistant' %}}<|assistant|>\n"
    "<think>{% if loop.index0 > ns.last %}{{ thought }}{% endif %}</think>"
    "{% if content %}\n{{ content.strip() }}{% endif %}{% for c in m.tool_calls or [] %}"
    "\n<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}\n"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>{% endfor %}\n</tool_call>"
    "{% endfor %}{% elif m.role == 'tool' %}<|observation|>\n{{ m.content }}{% else %}"
    "<|{{ m.role }}|>\n{{ content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GRANITE = (
    "{% if tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>\n"
    "{% endif %}{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tool_call|>{{ c.function | tojson }}"
    "{% endfor %}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
COMMAND = (
    "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}"
    "<|END_RESPONSE|>{% else %}<|{{ m.role | upper }}_TOKEN|>{{ m.content }}{% endif %}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|>"
    "<|CHATBOT_TOKEN|><|START_RESPONSE|>{% endif %}"
)
_KIMI_ROLE = "<|im_{{ m.role }}|>{{ m.name or m.role }}<|im_middle|>"
KIMI_K2 = (
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    f"{{% for m in messages %}}{_KIMI_ROLE}{{% if m.role == 'tool' %}}## Return of "
    "{{ m.tool_call_id }}\n{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<|tool_call_begin|>{{ c.id }}: {{ c.function.name }}{{ c.function.arguments | tojson }}"
    "<|tool_call_end|>{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
# Kimi K2 Thinking: an empty reasoning block in every turn without calls, even in the last.
KIMI_THINKING = KIMI_K2.replace(
    "{{ m.content or '' }}{% for",
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content if m.tool_calls else '' }}</think>"
    "{% endif %}{{ m.content or '' }}{% for",
)
SEED = (
    "{% for m in messages %}{{ bos_token }}{{ m.role }}\n{% if m.role == 'assistant' and "
    "m.reasoning_content and loop.last %}<seed:think>{{ m.reasoning_content }}</seed:think>"
    "{% endif %}{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
OLMO = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{{ eos_token if m.role == 'assistant' else '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Vicuna: roles are words, and the prompt ends in a space.
VICUNA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} {% elif m.role == 'user' %}"
    "USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
# Falcon: no end token at all.
FALCON = (
    "{% for m in messages %}{{ m.role | title }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
# LLaVA: content must be a list of parts.
LLAVA = (
    "{% for m in messages %}{{ m.role | upper }}: {% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ eos_token if m.role == 'assistant' else '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

_IM_END = ("<|im_end|>",)
_EOT = ("<|eot_id|>",)
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
_INST = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_DEEPSEEK = ("<|User|>", "<|Assistant|>", *_THINK)
_KIMI = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_tool|>", "<|im_middle|>")
_GEMMA = ("<start_of_turn>",)
_HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>")
FAMILIES = {
    "chatml": Family(CHATML, _IM_END, _IM),
    "qwen 3": Family(QWEN_3, _IM_END, _IM + _THINK),
    "qwen 3.5": Family(QWEN_3_5, _IM_END, _IM + _THINK),
    "nemotron 3": Family(NEMOTRON_3, _IM_END, _IM + _THINK),
    "smollm 3": Family(SMOLLM_3, _IM_END, _IM + _THINK),
    "lfm 2": Family(LFM_2, _IM_END, _IM + _THINK),
    "llama 2": Family(LLAMA_2, ("</s>",)),
    "llama 3": Family(LLAMA_3, _EOT, _HEADERS),
    "llama 3.1": Family(LLAMA_3_1, _EOT, _HEADERS),
    "gemma 2": Family(GEMMA_2, ("<end_of_turn>", "<eos>"), _GEMMA),
    "gemma 3": Family(GEMMA_3, ("<eos>", "<end_of_turn>"), _GEMMA),
    "gemma 4": Family(GEMMA_4, ("<turn|>",), ("<|turn>", "<|channel>", "<channel|>")),
    "mistral": Family(MISTRAL, ("</s>",), _INST),
    "magistral": Family(MAGISTRAL, ("</s>",), (*_INST, "[THINK]", "[/THINK]")),
    "phi 3": Family(PHI_3, ("<|endoftext|>", "<|end|>"), ("<|user|>", "<|assistant|>")),
    "phi 4": Family(PHI_4, _IM_END, (*_IM, "<|im_sep|>")),
    "gpt-oss": Family(GPT_OSS, ("<|return|>", "<|call|>"), _HARMONY),
    "deepseek r1": Family(DEEPSEEK_R1, ("<|eos|>",), _DEEPSEEK),
    "deepseek v3.1": Family(DEEPSEEK_V3_1, ("<|eos|>",), (*_DEEPSEEK, "<|call|>")),
    "glm 4.5": Family(
        GLM_4_5,
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        ("[gMASK]", "<sop>", "<|assistant|>", "<|system|>", *_THINK),
    ),
    "granite": Family(GRANITE, ("<|end_of_text|>",), ("<|start_of_role|>", "<|end_of_role|>")),
    "command": Family(COMMAND, ("<|END_OF_TURN_TOKEN|>",), ("<|START_OF_TURN_TOKEN|>",)),
    "kimi k2": Family(KIMI_K2, _IM_END, _KIMI),
    "kimi k2 thinking": Family(KIMI_THINKING, _IM_END, (*_KIMI, *_THINK)),
    "seed": Family(SEED, ("<seed:eos>",), ("<seed:think>", "</seed:think>")),
    "olmo": Family(OLMO, ("<|endoftext|>",), ("<|user|>", "<|assistant|>")),
    "vicuna": Family(VICUNA, ("</s>",)),
    "falcon": Family(FALCON, ("<|endoftext|>",)),
    "llava": Family(LLAVA, ("</s>",)),
}
