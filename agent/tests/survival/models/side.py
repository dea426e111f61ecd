"""What else clients ask of a provider: embeddings and the list of models. Prints it as JSON."""

import json

import openai

client = openai.OpenAI()
embedded = client.embeddings.create(model="text-embedding-3-small", input="hello")
print(json.dumps({"embedded": len(embedded.data[0].embedding) > 100, "models": len(client.models.list().data) > 1}))
