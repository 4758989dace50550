"""Exceptions of chat template rendering.

TemplatingError
├── TemplateRefusedError       the template raised an error for these messages
│   └── TemplateBrokenError    the template fails for all messages, e.g. it does not compile
├── TemplateLimitError         rendering exceeded the limit on time, memory or output
└── RenderProcessError         the render process could not start, or ended for another reason
"""


class TemplatingError(Exception):
    """Base class; the message is for people."""


class TemplateRefusedError(TemplatingError):
    """The template raised an error for these messages."""


class TemplateBrokenError(TemplateRefusedError):
    """The template does not compile, or violates the sandbox."""


class TemplateLimitError(TemplatingError):
    """Rendering exceeded the limit on time, memory or output, and was stopped."""


class RenderProcessError(TemplatingError):
    """The render process cannot be started, or ended for an unknown reason."""
