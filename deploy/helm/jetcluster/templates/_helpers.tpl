{{- define "jetcluster.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "jetcluster.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "jetcluster.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "jetcluster.labels" -}}
{{ include "jetcluster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "jetcluster.account" -}}
{{- default (include "jetcluster.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* A tls block, as JSON, of (root, values of that block). */ -}}
{{- define "jetcluster.tls" -}}
{{- $root := index . 0 -}}
{{- $tls := index . 1 -}}
{{- $block := dict "cert_file" (printf "%s/%s" $tls.dir $tls.cert) "key_file" (printf "%s/%s" $tls.dir $tls.key) -}}
{{- with $root.Values.tlsCA }}{{ if .enabled }}{{ $_ := set $block "ca_file" (printf "%s/%s" .dir .key) }}{{ end }}{{ end -}}
{{- mergeOverwrite $block (deepCopy $tls.merge) | toJson -}}
{{- end -}}

{{- /* Name: directory of each secret that is mounted, as YAML. */ -}}
{{- define "jetcluster.secrets" -}}
{{- $config := .Values.config -}}
{{- range $key, $tls := dict "nats" $config.nats.tls "cluster" $config.cluster.tls "leafnodes" $config.leafnodes.tls -}}
{{- if $tls.enabled }}
- { name: {{ $key }}-tls, dir: {{ $tls.dir }}, secret: {{ required (printf "config.%s.tls.secretName" $key) $tls.secretName }} }
{{- end -}}
{{- end -}}
{{- range $dir, $secret := .Values.container.secretMounts }}
- { name: {{ printf "secret-%s" ($dir | sha256sum | trunc 8) }}, dir: {{ $dir }}, secret: {{ $secret }} }
{{- end -}}
{{- end -}}

{{- /* The configuration file. JSON is a subset of its format. */ -}}
{{- define "jetcluster.config" -}}
{{- $config := dict "port" (int .Values.config.nats.port) "http_port" (int .Values.config.monitor.port) "pid_file" "/run/jetcluster/server.pid" "lame_duck_grace_period" "10s" "lame_duck_duration" "30s" -}}
{{- $workers := toString .Values.config.workers -}}
{{- if ne $workers "1" }}{{ $_ := set $config "workers" (ternary $workers (int .Values.config.workers) (eq $workers "auto")) }}{{ end -}}
{{- with .Values.config.jetstream -}}
{{- if .enabled -}}
{{- $js := dict "store_dir" .fileStore.dir -}}
{{- if .fileStore.setAsideRemoved }}{{ $_ := set $js "set_aside_removed" true }}{{ end -}}
{{- with .fileStore.maxSize }}{{ $_ := set $js "max_file_store" . }}{{ end -}}
{{- with .memoryStore.maxSize }}{{ $_ := set $js "max_memory_store" . }}{{ end -}}
{{- $_ := set $config "jetstream" (mergeOverwrite $js (deepCopy .merge)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.config.nats.tls.enabled }}{{ $_ := set $config "tls" (include "jetcluster.tls" (list . .Values.config.nats.tls) | fromJson) }}{{ end -}}
{{- with .Values.config.cluster -}}
{{- $cluster := mergeOverwrite (dict "trusted_network" .trustedNetwork) (deepCopy .merge) -}}
{{- if .tls.enabled }}{{ $_ := set $cluster "tls" (include "jetcluster.tls" (list $ .tls) | fromJson) }}{{ end -}}
{{- if and .enabled $cluster }}{{ $_ := set $config "cluster" $cluster }}{{ end -}}
{{- end -}}
{{- with .Values.config.leafnodes -}}
{{- if .enabled -}}
{{- /* Pods' addresses are of no use to leaves outside of the cluster. */ -}}
{{- $leafnodes := dict "port" (int .port) "no_advertise" true -}}
{{- if .tls.enabled }}{{ $_ := set $leafnodes "tls" (include "jetcluster.tls" (list $ .tls) | fromJson) }}{{ end -}}
{{- $_ := set $config "leafnodes" (mergeOverwrite $leafnodes (deepCopy .merge)) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config.merge) | toPrettyJson -}}
{{- end -}}
