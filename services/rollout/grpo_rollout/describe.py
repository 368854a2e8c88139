"""`python -m grpo_rollout.describe`: print the OpenAPI document of our routes."""

import json

from .routes import openapi_document

if __name__ == "__main__":
    print(json.dumps(openapi_document(), indent=1, sort_keys=True))
