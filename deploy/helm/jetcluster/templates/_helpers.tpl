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

{{- /* Labels of the pods of hooks: of the release, and no servers. */ -}}
{{- define "jetcluster.helper-labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "jetcluster.image" -}}
{{ .Values.container.image.repository }}:{{ default .Chart.AppVersion .Values.container.image.tag }}
{{- end -}}

{{- define "jetcluster.secret" -}}
{{- default (printf "%s-auth" (include "jetcluster.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- /* "true" where the chart makes the user `system`. */ -}}
{{- define "jetcluster.has-system" -}}
{{- $own := pick .Values.config.merge "authorization" "accounts" "operator" "system_account" "no_auth_user" -}}
{{- if and .Values.auth.enabled (not $own) }}true{{ end -}}
{{- end -}}

{{- define "jetcluster.pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "jetcluster.tls-ca-volume" -}}
{{- with .Values.tlsCA -}}
{{- if .enabled -}}
- name: tls-ca
  {{- if .configMapName }}
  configMap: { name: {{ .configMapName }} }
  {{- else }}
  secret: { secretName: {{ required "tlsCA.configMapName or tlsCA.secretName" .secretName }} }
  {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "jetcluster.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
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
{{- if .Values.console.enabled }}{{ $_ := set $config "console" true }}{{ end -}}
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
{{- /* A pod has another address after each restart: clients keep to the service, and do not ask addresses that are gone. */ -}}
{{- $cluster := dict "listen" (printf "0.0.0.0:%d" (int .port)) "no_advertise" true "trusted_network" .trustedNetwork -}}
{{- if $.Values.auth.enabled }}{{ $_ := set $cluster "authorization" (dict "user" "route" "password" "$JETCLUSTER_ROUTE_PASSWORD") }}{{ end -}}
{{- $cluster = mergeOverwrite $cluster (deepCopy .merge) -}}
{{- if .tls.enabled }}{{ $_ := set $cluster "tls" (include "jetcluster.tls" (list $ .tls) | fromJson) }}{{ end -}}
{{- if .enabled }}{{ $_ := set $config "cluster" $cluster }}{{ end -}}
{{- end -}}
{{- with .Values.config.leafnodes -}}
{{- if .enabled -}}
{{- /* Pods' addresses are of no use to leaves outside of the cluster. */ -}}
{{- $leafnodes := dict "port" (int .port) "no_advertise" true -}}
{{- if .tls.enabled }}{{ $_ := set $leafnodes "tls" (include "jetcluster.tls" (list $ .tls) | fromJson) }}{{ end -}}
{{- $_ := set $config "leafnodes" (mergeOverwrite $leafnodes (deepCopy .merge)) -}}
{{- end -}}
{{- end -}}
{{- if include "jetcluster.has-system" . -}}
{{- $_ := set $config "system_account" "$SYS" -}}
{{- $_ := set $config "accounts" (dict "$SYS" (dict "users" (list (dict "user" "system" "password" "$JETCLUSTER_SYSTEM_PASSWORD")))) -}}
{{- /* Who has no password is this user, of $G. Its own password is no secret. */ -}}
{{- $_ := set $config "authorization" (dict "users" (list (dict "user" "anyone" "password" "anyone"))) -}}
{{- $_ := set $config "no_auth_user" "anyone" -}}
{{- end -}}
{{- if and .Values.zones.enabled .Values.zones.unique }}{{ $_ := set (index $config "jetstream") "unique_tag" "zone:" }}{{ end -}}
{{- /* In quotes a variable is only text. */ -}}
{{- mergeOverwrite $config (deepCopy .Values.config.merge) | toPrettyJson | replace "\"$JETCLUSTER_ROUTE_PASSWORD\"" "$JETCLUSTER_ROUTE_PASSWORD" | replace "\"$JETCLUSTER_SYSTEM_PASSWORD\"" "$JETCLUSTER_SYSTEM_PASSWORD" -}}
{{- end -}}
