FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/metatxn
COPY . .
RUN pip install --no-cache-dir '.[demo]'
ENV PYSPARK_PYTHON=python3
EXPOSE 8470 8471
CMD ["metatxn", "--help"]
